package lease_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"eskit.dev/lease"
)

// keepAlive lets a session live on while its keeper hears nothing.
func keepAlive(t *testing.T, db *pgxpool.Pool, session string) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var beating sync.WaitGroup
	beating.Go(func() {
		for ctx.Err() == nil {
			_, _ = db.Exec(ctx, `SELECT eskit_lease.session_heartbeat($1)`, session)
			time.Sleep(ttl / 10)
		}
	})
	return func() {
		cancel()
		beating.Wait()
	}
}

// kept returns how much a session has or waits for.
func kept(t *testing.T, db *pgxpool.Pool, session string) int {
	return one[int](t, db, `SELECT (SELECT count(*) FROM eskit_lease.leases WHERE session = $1 AND state = 'held')
		+ (SELECT count(*) FROM eskit_lease.waiters WHERE session = $1)
		+ (SELECT count(*) FROM eskit_lease.group_members WHERE session = $1)
		+ (SELECT count(*) FROM eskit_lease.items WHERE session = $1)
		+ (SELECT count(*) FROM eskit_lease.executions WHERE session = $1 AND state = 'running')`, session)
}

// A session may outlive any silence, as it does a restart of its server: all that ended meanwhile is given back.
func TestAllIsGivenBackAfterASilence(t *testing.T) {
	p, by := through(t)
	db := pool(t, dsn(t))
	l, err := lease.Open(t.Context(), by, lease.WithTTL(ttl))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	session, name := l.Session(), unique+t.Name()
	do(t, db, `SELECT eskit_lease.group_create($1, 1)`, name+"group")
	defer do(t, db, `SELECT eskit_lease.group_drop($1)`, name+"group")
	do(t, db, `SELECT eskit_lease.queue_create($1), eskit_lease.item_add($1, '1')`, name+"queue")
	defer do(t, db, `SELECT eskit_lease.queue_drop($1, items => true)`, name+"queue")
	leading, lead := mustLead(t, l, name)
	ctx, cancel := context.WithCancel(t.Context())
	begun, ended := make(chan bool, 3), make(chan string, 3)
	go func() {
		_ = l.Join(ctx, name+"group", func(ctx context.Context, _ *lease.Partition) error {
			begun <- true
			<-ctx.Done()
			return nil
		})
		ended <- "Join"
	}()
	go func() {
		_ = l.Work(ctx, name+"queue", 1, db, func(ctx context.Context, _ pgx.Tx, _ lease.Item) error {
			begun <- true
			<-ctx.Done()
			return errors.New("cancelled")
		})
		ended <- "Work"
	}()
	go func() {
		outcome, err := l.Once(t.Context(), name+"once", func(ctx context.Context, _ int64) (any, error) {
			begun <- true
			<-ctx.Done()
			return nil, nil
		})
		if err == nil || outcome.State != "in_doubt" {
			t.Error(outcome, err)
		}
		ended <- "Once"
	}()
	for range 3 {
		<-begun
	}
	stop := keepAlive(t, db, session)
	defer stop()
	p.forget(true)
	p.cut()
	<-leading.Done()
	if _, none, err := l.TryLead(t.Context(), unique+"other"); none != nil || err != nil {
		t.Error(err)
	}
	began := time.Now()
	cancel()
	lead.Release()
	for range 3 {
		<-ended
	}
	if took := time.Since(began); took > 2*ttl {
		t.Error("returned after", took)
	}
	time.Sleep(ttl)
	p.forget(false)
	eventually(t, "all is given back", func() bool { return kept(t, db, session) == 0 })
	if l.Session() != session {
		t.Error("another session")
	}
}

// An error whose text the server cannot store ends an item and a key all the same.
func TestErrorWithATextThatCannotBeStored(t *testing.T) {
	l, db := open(t), pool(t, dsn(t))
	bad := errors.New("bad \xff, \x00")
	name := unique + t.Name()
	do(t, db, `SELECT eskit_lease.queue_create($1, retry_backoff => '10 ms'), eskit_lease.item_add($1, '1')`, name)
	defer do(t, db, `SELECT eskit_lease.queue_drop($1, items => true)`, name)
	ctx, cancel := context.WithTimeout(t.Context(), 2*ttl)
	defer cancel()
	var calls atomic.Int32
	_ = l.Work(ctx, name, 1, db, func(context.Context, pgx.Tx, lease.Item) error {
		if calls.Add(1) == 2 {
			cancel()
		}
		return bad
	})
	if calls.Load() < 2 {
		t.Error("the item was not tried again")
	}
	text := one[string](t, db, `SELECT error FROM eskit_lease.items WHERE queue = $1`, name)
	if text != "bad \ufffd, \ufffd" {
		t.Errorf("%q", text)
	}
	fences := map[int64]bool{}
	for range 2 {
		outcome, err := l.Once(t.Context(), name, func(_ context.Context, fence int64) (any, error) {
			fences[fence] = true
			return nil, bad
		})
		if !errors.Is(err, bad) || outcome.State != "failed" {
			t.Error(outcome, err)
		}
	}
	if len(fences) != 2 {
		t.Error(fences)
	}
	for _, result := range []any{"\x00", func() {}} {
		runs, key := 0, fmt.Sprintf("%s%T", name, result)
		for range 2 {
			outcome, _ := l.Once(t.Context(), key, func(context.Context, int64) (any, error) {
				runs++
				return result, nil
			})
			if outcome.State != "failed" || runs != 1 {
				t.Error(outcome, runs)
			}
		}
	}
}

// asConsumer makes a role that may no more than a consumer, and returns its connection string.
func asConsumer(t *testing.T, db *pgxpool.Pool, by string) (role, dsn string) {
	role = fmt.Sprintf("go_test_%d_%s", os.Getpid(), strings.ToLower(t.Name()[4:20]))
	do(t, db, `CREATE ROLE `+role+` LOGIN PASSWORD 'only for this test'`)
	do(t, db, `SELECT eskit_lease.grant_consumer($1)`, role)
	t.Cleanup(func() { do(t, db, `DROP OWNED BY `+role+`; DROP ROLE `+role) })
	u, err := url.Parse(by)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(role, "only for this test")
	return role, u.String()
}

// logged is a log, and what it was told.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(text)
}

func (l *logged) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), what)
}

func (l *logged) option() lease.Option {
	return lease.WithLogger(slog.New(slog.NewTextHandler(l, nil)))
}

// A function whose end the server does not let the process store does not run again under its fence.
func TestOnceRunsNoFenceTwice(t *testing.T) {
	db := pool(t, dsn(t))
	role, by := asConsumer(t, db, dsn(t))
	l, err := lease.Open(t.Context(), by, lease.WithTTL(ttl))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	const right = ` EXECUTE ON FUNCTION eskit_lease.execution_fail(text, bigint, text, boolean) `
	do(t, db, `REVOKE`+right+`FROM `+role)
	runs := 0
	for i, want := range []string{"in_doubt", "in_doubt", "failed", "failed"} {
		if i == 2 {
			do(t, db, `GRANT`+right+`TO `+role)
		}
		outcome, err := l.Once(t.Context(), unique+t.Name(), func(context.Context, int64) (any, error) {
			runs++
			return nil, errors.New("broken")
		})
		if outcome.State != want || outcome.First != (i == 0) || runs != 1 || (err == nil) != (i == 3) {
			t.Error(i, outcome, runs, err)
		}
	}
}

// A member whose assignment is refused for good leaves the group; another refusal passes, and ends nothing.
func TestJoinWhileTheAssignmentIsRefused(t *testing.T) {
	db := pool(t, dsn(t))
	role, by := asConsumer(t, db, dsn(t))
	var log logged
	l, err := lease.Open(t.Context(), by, lease.WithTTL(ttl), log.option())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	group := unique + t.Name()
	do(t, db, `SELECT eskit_lease.group_create($1, 2)`, group)
	defer do(t, db, `SELECT eskit_lease.group_drop($1)`, group)
	var owned [2]atomic.Int32
	member := func(who int) func(context.Context, *lease.Partition) error {
		return func(ctx context.Context, _ *lease.Partition) error {
			defer owned[who].Add(-1)
			owned[who].Add(1)
			<-ctx.Done()
			return nil
		}
	}
	joined, left := make(chan error, 1), make(chan error, 1)
	go func() { joined <- l.Join(t.Context(), group, member(0)) }()
	eventually(t, "one owns all", func() bool { return owned[0].Load() == 2 })

	const function = `FUNCTION eskit_lease.group_assignment`
	do(t, db, `ALTER `+function+` RENAME TO group_assignment_away`)
	t.Cleanup(func() { _, _ = db.Exec(context.Background(), `ALTER `+function+`_away RENAME TO group_assignment`) })
	other := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { left <- other.Join(ctx, group, member(1)) }()
	eventually(t, "it is told", func() bool { return log.count("42883") == 1 })
	do(t, db, `ALTER `+function+`_away RENAME TO group_assignment`)
	eventually(t, "they share", func() bool { return owned[0].Load() == 1 && owned[1].Load() == 1 })

	do(t, db, `REVOKE EXECUTE ON `+function+` FROM `+role)
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) { // and its partition moves to the one that may not look
		t.Error(err)
	}
	var told interface{ SQLState() string }
	if err := <-joined; !errors.As(err, &told) || told.SQLState() != "42501" {
		t.Error(err)
	}
	members := one[int](t, db, `SELECT count(*) FROM eskit_lease.group_members WHERE group_name = $1`, group)
	if members != 0 {
		t.Error("members:", members)
	}
}

// A claim that is refused for now is made again.
func TestWorkOnAServerThatStandsBy(t *testing.T) {
	db := pool(t, dsn(t))
	var made atomic.Int32
	connect := func(ctx context.Context) (*pgx.Conn, error) {
		config, err := pgx.ParseConfig(dsn(t))
		if err != nil {
			return nil, err
		}
		if made.Add(1) == 2 {
			config.RuntimeParams["default_transaction_read_only"] = "on"
			config.RuntimeParams["application_name"] = unique + t.Name()
		}
		return pgx.ConnectConfig(ctx, config)
	}
	l, err := lease.Open(t.Context(), "", lease.WithConnect(connect), lease.WithTTL(ttl))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	queue := unique + t.Name()
	do(t, db, `SELECT eskit_lease.queue_create($1), eskit_lease.item_add($1, '1')`, queue)
	defer do(t, db, `SELECT eskit_lease.queue_drop($1, items => true)`, queue)
	ctx, cancel := context.WithTimeout(t.Context(), 3*ttl)
	defer cancel()
	time.AfterFunc(ttl/2, func() {
		do(t, db, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = left($1, 63)`, queue)
	})
	handled := false
	err = l.Work(ctx, queue, 1, db, func(context.Context, pgx.Tx, lease.Item) error {
		handled = true
		cancel()
		return nil
	})
	if !handled {
		t.Error(err)
	}
}

// unreliable is a pool that has no connection at first.
type unreliable struct {
	*pgxpool.Pool
	tries atomic.Int32
}

func (u *unreliable) Begin(ctx context.Context) (pgx.Tx, error) {
	if u.tries.Add(1) == 1 {
		return nil, errors.New("no connection")
	}
	return u.Pool.Begin(ctx)
}

// A handler that could not begin uses up no attempt.
func TestWorkWithoutAConnection(t *testing.T) {
	l, db := open(t), &unreliable{Pool: pool(t, dsn(t))}
	queue := unique + t.Name()
	do(t, db.Pool, `SELECT eskit_lease.queue_create($1), eskit_lease.item_add($1, '1')`, queue)
	defer do(t, db.Pool, `SELECT eskit_lease.queue_drop($1, items => true)`, queue)
	ctx, cancel := context.WithTimeout(t.Context(), 3*ttl)
	defer cancel()
	attempt, began := 0, time.Now()
	_ = l.Work(ctx, queue, 1, db, func(_ context.Context, _ pgx.Tx, item lease.Item) error {
		attempt = item.Attempt
		cancel()
		return nil
	})
	if attempt != 1 || db.tries.Load() != 2 || time.Since(began) < 500*time.Millisecond {
		t.Error(attempt, db.tries.Load(), time.Since(began))
	}
}

// A run-once key that was begun for a caller who has gone is given back, and may be run.
func TestOnceOfACallerThatHasGone(t *testing.T) {
	p, by := through(t)
	l, err := lease.Open(t.Context(), by, lease.WithTTL(2*ttl))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	db, key := pool(t, dsn(t)), unique+t.Name()
	_, lead := mustLead(t, l, key+"lead") // so the second connection is open
	defer lead.Release()
	time.Sleep(200 * time.Millisecond) // until the lead asks no more
	p.forget(true)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	began := time.Now()
	outcome, err := l.Once(ctx, key, func(context.Context, int64) (any, error) {
		t.Error("runs for nobody")
		return nil, nil
	})
	if !errors.Is(err, context.DeadlineExceeded) || outcome.First || time.Since(began) > ttl/2 {
		t.Error(outcome, err, time.Since(began))
	}
	p.forget(false)
	p.cut()
	eventually(t, "it is given back", func() bool {
		return one[int](t, db, `SELECT count(*) FROM eskit_lease.executions WHERE key = $1 AND state = 'retry'`, key) == 1
	})
	outcome, err = open(t).Once(t.Context(), key, func(context.Context, int64) (any, error) { return 7, nil })
	if err != nil || outcome.State != "done" {
		t.Error(outcome, err)
	}
}

// A connection that the server ended while it was idle takes no claim with it.
func TestConnectionThatEndedWhileIdle(t *testing.T) {
	db := pool(t, dsn(t))
	role, by := asConsumer(t, db, dsn(t))
	var log logged
	l, err := lease.Open(t.Context(), by, lease.WithTTL(ttl), log.option())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	session, queue := l.Session(), unique+t.Name()
	do(t, db, `SELECT eskit_lease.queue_create($1), eskit_lease.item_add($1, '1')`, queue)
	defer do(t, db, `SELECT eskit_lease.queue_drop($1, items => true)`, queue)
	_, lead := mustLead(t, l, queue+"lead") // so the second connection is open
	defer lead.Release()
	time.Sleep(ttl / 4)
	do(t, db, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE query LIKE '%lease_acquire%' AND state = 'idle' AND usename = $1`, role)
	time.Sleep(ttl / 10)
	ctx, cancel := context.WithTimeout(t.Context(), 3*ttl)
	defer cancel()
	handled := false
	err = l.Work(ctx, queue, 1, db, func(context.Context, pgx.Tx, lease.Item) error {
		handled = true
		cancel()
		return nil
	})
	if !handled || l.Session() != session || !lead.Trusted() {
		t.Error(handled, err, log.text.String())
	}
}

// What a claim brought whose answer was lost is given back also if Work has ended meanwhile.
func TestWorkThatEndsAfterALostClaim(t *testing.T) {
	p, by := through(t)
	l, err := lease.Open(t.Context(), by, lease.WithTTL(2*ttl))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	db, queue := pool(t, dsn(t)), unique+t.Name()
	do(t, db, `SELECT eskit_lease.queue_create($1), eskit_lease.item_add($1, '1')`, queue)
	defer do(t, db, `SELECT eskit_lease.queue_drop($1, items => true)`, queue)
	_, lead := mustLead(t, l, queue+"lead") // so the second connection is open
	defer lead.Release()
	time.Sleep(ttl / 10) // until the lead asks no more
	p.forget(true)
	ctx, cancel := context.WithCancel(t.Context())
	worked := make(chan error)
	go func() { worked <- l.Work(ctx, queue, 1, db, nil) }()
	state := func(is string) func() bool {
		return func() bool {
			return one[string](t, db, `SELECT state FROM eskit_lease.items WHERE queue = $1`, queue) == is
		}
	}
	eventually(t, "it is claimed", state("claimed"))
	cancel()
	p.cut()
	p.forget(false)
	<-worked
	eventually(t, "it is given back", state("ready"))
}

// A function that panics gives its key back, and its turn.
func TestOnceThatPanics(t *testing.T) {
	l := open(t)
	fences := map[int64]bool{}
	for _, panics := range []bool{true, false} {
		func() {
			defer func() {
				if (recover() != nil) != panics {
					t.Error("panicked:", !panics)
				}
			}()
			_, _ = l.Once(t.Context(), unique+t.Name(), func(_ context.Context, fence int64) (any, error) {
				fences[fence] = true
				if panics {
					panic("broken")
				}
				return nil, nil
			})
		}()
	}
	if len(fences) != 2 {
		t.Error(fences)
	}
}

// A member whose join was answered after its caller had gone leaves.
func TestJoinOfACallerThatHasGone(t *testing.T) {
	p, by := through(t)
	l, err := lease.Open(t.Context(), by, lease.WithTTL(2*ttl))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	db, group := pool(t, dsn(t)), unique+t.Name()
	do(t, db, `SELECT eskit_lease.group_create($1, 1)`, group)
	defer do(t, db, `SELECT eskit_lease.group_drop($1)`, group)
	_, lead := mustLead(t, l, group+"lead") // so the second connection is open
	defer lead.Release()
	time.Sleep(ttl / 10) // until the lead asks no more
	p.forget(true)
	ctx, cancel := context.WithCancel(t.Context())
	joined := make(chan error)
	go func() { joined <- l.Join(ctx, group, nil) }()
	members := func(is int) func() bool {
		return func() bool {
			return one[int](t, db, `SELECT count(*) FROM eskit_lease.group_members WHERE group_name = $1`, group) == is
		}
	}
	eventually(t, "it is a member", members(1))
	cancel()
	p.cut()
	p.forget(false)
	if err := <-joined; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	eventually(t, "it has left", members(0))
}

// A database may lack the letters of an error.
func TestErrorInAnEncodingThatLacksALetter(t *testing.T) {
	u, err := url.Parse(dsn(t))
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprint("go_test_latin1_", os.Getpid())
	db := pool(t, dsn(t))
	do(t, db, `CREATE DATABASE `+name+` TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'`)
	t.Cleanup(func() { do(t, db, `DROP DATABASE `+name+` WITH (FORCE)`) })
	u.Path, u.RawQuery = "/"+name, "client_encoding=UTF8"
	latin := pool(t, u.String())
	do(t, latin, `CREATE EXTENSION eskit_lease`)
	l, err := lease.Open(t.Context(), u.String(), lease.WithTTL(ttl))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	outcome, err := l.Once(t.Context(), "x", func(context.Context, int64) (any, error) { return nil, errors.New("日本") })
	text := one[string](t, latin, `SELECT error FROM eskit_lease.executions`)
	if err == nil || outcome.State != "failed" || text != "the error's text could not be stored" {
		t.Error(outcome, err, text)
	}
}

// broken is a result that panics when it is encoded.
type broken struct{}

func (broken) MarshalJSON() ([]byte, error) { panic("broken") }

// A result that panics does so where its caller may recover, and its function does not run again.
func TestOnceWithAResultThatPanics(t *testing.T) {
	l := open(t)
	runs := 0
	once := func() (outcome lease.Outcome, err error) {
		defer func() { _ = recover() }()
		return l.Once(t.Context(), unique+t.Name(), func(context.Context, int64) (any, error) {
			runs++
			return broken{}, nil
		})
	}
	_, _ = once()
	if outcome, err := once(); outcome.State != "failed" || err != nil || runs != 1 {
		t.Error(outcome, err, runs)
	}
}

// listened is a connection that tells what is sent before it sends it.
type listened struct {
	net.Conn
	hear func(conn net.Conn, sent []byte)
}

func (c listened) Write(sent []byte) (int, error) {
	c.hear(c.Conn, sent)
	return c.Conn.Write(sent)
}

// openListened opens a keeper whose connections tell what they send.
func openListened(t *testing.T, hear func(conn net.Conn, sent []byte)) *lease.Leases {
	config, err := pgx.ParseConfig(dsn(t))
	if err != nil {
		t.Fatal(err)
	}
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		return listened{conn, hear}, err
	}
	return open(t, lease.WithConnect(func(ctx context.Context) (*pgx.Conn, error) {
		return pgx.ConnectConfig(ctx, config)
	}))
}

// What is granted after a drain began is given back, and nothing begins.
func TestGrantAfterADrainBegan(t *testing.T) {
	db := pool(t, dsn(t))
	for _, verb := range []string{"lease_acquire", "execution_begin", "group_assignment", "item_claim"} {
		t.Run(verb, func(t *testing.T) {
			name := unique + t.Name()
			do(t, db, `SELECT eskit_lease.group_create($1, 1)`, name)
			do(t, db, `SELECT eskit_lease.queue_create($1), eskit_lease.item_add($1, '1')`, name)
			var l *lease.Leases
			var drains sync.Once
			drained := make(chan bool)
			l = openListened(t, func(_ net.Conn, sent []byte) {
				if bytes.Contains(sent, []byte(verb)) {
					drains.Do(func() {
						go func() {
							l.Drain(context.Background())
							close(drained)
						}()
						<-l.Draining()
					})
				}
			})
			switch verb {
			case "lease_acquire":
				if _, lead, err := l.Lead(t.Context(), name+"lead"); !errors.Is(err, lease.ErrClosed) {
					t.Error("leads", err)
					lead.Release()
				}
			case "execution_begin":
				_, err := l.Once(t.Context(), name, func(context.Context, int64) (any, error) {
					t.Error("runs")
					return nil, nil
				})
				if !errors.Is(err, lease.ErrLost) {
					t.Error(err)
				}
			case "group_assignment":
				_ = l.Join(t.Context(), name, func(context.Context, *lease.Partition) error {
					t.Error("works")
					return nil
				})
			case "item_claim":
				_ = l.Work(t.Context(), name, 1, db, func(context.Context, pgx.Tx, lease.Item) error {
					t.Error("handles")
					return nil
				})
			}
			<-drained
			do(t, db, `SELECT eskit_lease.group_drop($1), eskit_lease.queue_drop($1, items => true)`, name)
		})
	}
}

// fault befalls one call of the second connection: its caller goes, its answer is lost, or both.
type fault struct {
	mu       sync.Mutex
	after    int // so many calls
	cancel   func()
	cancels  bool
	cuts     bool
	happened bool
}

func (f *fault) hear(conn net.Conn, sent []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.happened || f.cancel == nil || !bytes.Contains(sent, []byte("eskit_lease.")) || bytes.Contains(sent, []byte(".session_")) {
		return
	}
	if f.after--; f.after >= 0 {
		return
	}
	f.happened = true
	if f.cuts {
		_, _ = conn.Write(sent)
		time.Sleep(20 * time.Millisecond) // for the server, which may answer
		conn.Close()
	}
	if f.cancels {
		f.cancel()
	}
}

// Whichever call a caller goes at, or loses the answer of: nothing stays behind in the session.
func TestFaultAtEachCall(t *testing.T) {
	db, f := pool(t, dsn(t)), &fault{}
	l := openListened(t, f.hear)
	verbs := map[string]func(ctx context.Context, end func(), name string){
		"lead": func(ctx context.Context, _ func(), name string) {
			_, lead, _ := l.Lead(ctx, name)
			lead.Release()
		},
		"join": func(ctx context.Context, end func(), name string) {
			do(t, db, `SELECT eskit_lease.group_create($1, 1)`, name)
			begun := 0
			_ = l.Join(ctx, name, func(context.Context, *lease.Partition) error {
				if begun++; begun == 2 {
					end()
				}
				return lease.ErrRefused
			})
		},
		"work": func(ctx context.Context, end func(), name string) {
			do(t, db, `SELECT eskit_lease.queue_create($1, retry_backoff => '1 ms'), eskit_lease.item_add($1, '1')`, name)
			_ = l.Work(ctx, name, 2, db, func(_ context.Context, _ pgx.Tx, item lease.Item) error {
				if item.Attempt == 2 {
					end()
				}
				return errors.New("again")
			})
		},
		"once": func(ctx context.Context, _ func(), name string) {
			_, _ = l.Once(ctx, name, func(context.Context, int64) (any, error) { return nil, nil })
		},
	}
	for verb, run := range verbs {
		for _, how := range []string{"cancel", "cut", "cut and cancel"} {
			for after, more := 0, true; more; after++ {
				ctx, cancel := context.WithCancel(t.Context())
				f.mu.Lock()
				f.after, f.cancel, f.happened = after, cancel, false
				f.cancels, f.cuts = strings.Contains(how, "cancel"), strings.Contains(how, "cut")
				f.mu.Unlock()
				run(ctx, cancel, fmt.Sprint(unique, t.Name(), verb, how, after))
				cancel()
				f.mu.Lock()
				more, f.cancel = f.happened, nil
				f.mu.Unlock()
				eventually(t, fmt.Sprintf("%s, %s after %d calls: all is given back", verb, how, after), func() bool {
					return kept(t, db, l.Session()) == 0
				})
			}
		}
	}
}
