package lease_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	eventually(t, "all is given back", func() bool {
		return one[int](t, db, `SELECT (SELECT count(*) FROM eskit_lease.leases WHERE session = $1 AND state = 'held')
			+ (SELECT count(*) FROM eskit_lease.group_members WHERE session = $1)
			+ (SELECT count(*) FROM eskit_lease.items WHERE session = $1)
			+ (SELECT count(*) FROM eskit_lease.executions WHERE session = $1 AND state = 'running')`, session) == 0
	})
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
	if text := one[string](t, db, `SELECT error FROM eskit_lease.items WHERE queue = $1`, name); text != "bad \ufffd, \ufffd" {
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
