package lease_test

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	"eskit.dev/lease"
)

const ttl = 2 * time.Second

// unique makes names that no other run of the tests has.
var unique = fmt.Sprintf("go-%d-%d", os.Getpid(), time.Now().Unix())

func dsn(t *testing.T) string {
	dsn := os.Getenv("DATABASE_URL")
	if dsn == "" {
		t.Skip("DATABASE_URL is not set")
	}
	return dsn
}

func open(t *testing.T, options ...lease.Option) *lease.Leases {
	t.Helper()
	l, err := lease.Open(t.Context(), dsn(t), append([]lease.Option{lease.WithTTL(ttl)}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

func pool(t *testing.T, dsn string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// do runs a statement of the test's own.
func do(t *testing.T, db *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(context.Background(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

func one[T any](t *testing.T, db *pgxpool.Pool, sql string, args ...any) (value T) {
	t.Helper()
	if err := db.QueryRow(context.Background(), sql, args...).Scan(&value); err != nil {
		t.Fatal(err)
	}
	return value
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never: " + what)
		}
	}
}

func mustLead(t *testing.T, l *lease.Leases, name string) (context.Context, *lease.Lead) {
	t.Helper()
	ctx, lead, err := l.Lead(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return ctx, lead
}

// through returns the connection string by a new proxy.
func through(t *testing.T) (*proxy, string) {
	u, err := url.Parse(dsn(t))
	if err != nil {
		t.Fatal(err)
	}
	p := newProxy(t, u.Host)
	u.Host = p.Addr().String()
	return p, u.String()
}

func nothing(pgx.Tx) error { return nil }

func TestLead(t *testing.T) {
	a, b, db := open(t), open(t), pool(t, dsn(t))
	name := unique + t.Name()
	ctx, lead := mustLead(t, a, name)
	if lead.Name() != name || lead.Fence() == 0 || lead.Session() != a.Session() || !lead.Trusted() {
		t.Error(lead)
	}
	if err := lead.Transaction(ctx, db, nothing); err != nil {
		t.Error(err)
	}
	if _, none, err := b.TryLead(t.Context(), name); none != nil || err != nil {
		t.Error("leads beside another", err)
	}
	followed := make(chan int64)
	go func() {
		_, lead, err := b.Lead(context.Background(), name)
		if err != nil {
			t.Error(err)
		}
		followed <- lead.Fence()
		lead.Release()
	}()
	select {
	case <-followed:
		t.Fatal("leads beside another")
	case <-time.After(300 * time.Millisecond):
	}
	lead.Release()
	lead.Release()
	if err := context.Cause(ctx); err == nil || lead.Trusted() {
		t.Error("lives on")
	}
	if fence := <-followed; fence <= lead.Fence() {
		t.Error("fences must grow")
	}
	if err := lead.Transaction(t.Context(), db, nothing); !errors.Is(err, lease.ErrLost) {
		t.Error(err)
	}
	_, again, err := a.TryLead(t.Context(), unique+"other")
	if err != nil || again == nil {
		t.Fatal(err)
	}
	again.Release()
}

func TestLeadsOfOneNameFollowOneAnother(t *testing.T) {
	l := open(t)
	var leading atomic.Int32
	var all sync.WaitGroup
	fences := make(chan int64, 5)
	for range 5 {
		all.Go(func() {
			_, lead, err := l.Lead(t.Context(), unique+t.Name())
			if err != nil {
				t.Error(err)
				return
			}
			if leading.Add(1) != 1 {
				t.Error("two at once")
			}
			fences <- lead.Fence()
			time.Sleep(5 * time.Millisecond)
			leading.Add(-1)
			lead.Release()
		})
	}
	all.Wait()
	close(fences)
	var got []int64
	for fence := range fences {
		got = append(got, fence)
	}
	if !slices.IsSorted(got) || len(slices.Compact(got)) != 5 {
		t.Error(got)
	}
}

func TestLeadThatIsNotWaitedForGivesUpItsPlace(t *testing.T) {
	a, b, c := open(t), open(t), open(t)
	name := unique + t.Name()
	_, lead := mustLead(t, a, name)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, none, err := b.Lead(ctx, name); none != nil || !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	lead.Release()
	_, next := mustLead(t, c, name)
	next.Release()
}

// begun is a transaction of one of the drivers, and how to end it.
type begun struct {
	tx               lease.Tx
	exec             func(sql string) error
	commit, rollback func() error
}

// drivers returns what begins a transaction, for each kind of connection.
func drivers(t *testing.T) map[string]func() begun {
	ctx := context.Background()
	pool := pool(t, dsn(t))
	conn, err := pgx.Connect(ctx, dsn(t))
	if err != nil {
		t.Fatal(err)
	}
	std, err := sql.Open("pgx", dsn(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close(ctx)
		std.Close()
	})
	with := func(db lease.Beginner) func() begun {
		return func() begun {
			tx, err := db.Begin(ctx)
			if err != nil {
				t.Fatal(err)
			}
			return begun{tx, func(sql string) error { _, err := tx.Exec(ctx, sql); return err },
				func() error { return tx.Commit(ctx) }, func() error { return tx.Rollback(ctx) }}
		}
	}
	return map[string]func() begun{"pgx.Conn": with(conn), "pgxpool": with(pool), "database/sql": func() begun {
		tx, err := std.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		return begun{lease.SQL(tx), func(sql string) error { _, err := tx.Exec(sql); return err }, tx.Commit, tx.Rollback}
	}}
}

func TestGuard(t *testing.T) {
	l, db := open(t), pool(t, dsn(t))
	do(t, db, `DROP TABLE IF EXISTS go_test_writes; CREATE TABLE go_test_writes (name text)`)
	defer do(t, db, `DROP TABLE go_test_writes`)
	for driver, begin := range drivers(t) {
		name := unique + t.Name() + driver
		_, lead := mustLead(t, l, name)
		written := func() int { return one[int](t, db, `SELECT count(*) FROM go_test_writes WHERE name = $1`, name) }
		write := func(b begun) {
			t.Helper()
			if err := cmp.Or(lead.Guard(t.Context(), b.tx), b.exec(`INSERT INTO go_test_writes VALUES ('`+name+`')`)); err != nil {
				t.Error(driver, err)
			}
		}
		b := begin()
		write(b)
		if err := b.rollback(); err != nil || written() != 0 {
			t.Error(driver, err)
		}
		if err := lead.Guard(t.Context(), b.tx); !errors.Is(err, lease.ErrNoTransaction) {
			t.Error(driver, "after a rollback:", err)
		}
		b = begin()
		write(b)
		if err := b.commit(); err != nil || written() != 1 {
			t.Error(driver, err)
		}
		if err := lead.Guard(t.Context(), b.tx); !errors.Is(err, lease.ErrNoTransaction) || !lead.Trusted() {
			t.Error(driver, "after a commit:", err)
		}
		if b = begin(); driver != "database/sql" { // which cannot tell
			if err := cmp.Or(b.exec(`COMMIT`), lead.Guard(t.Context(), b.tx)); !errors.Is(err, lease.ErrNoTransaction) {
				t.Error(driver, "after COMMIT by SQL:", err)
			}
		}
		_ = b.rollback()

		b = begin()
		do(t, db, `SELECT eskit_lease.lease_force_release($1, $2, 'a test')`, name, lead.Fence())
		err := lead.Guard(t.Context(), b.tx)
		if !errors.Is(err, lease.ErrRefused) && !errors.Is(err, lease.ErrLost) { // the keeper may have heard of it
			t.Error(driver, err)
		}
		_ = b.rollback()
		lead.Release()

		b = begin()
		_, lead = mustLead(t, l, name)
		lead.Unsure()
		if err := lead.Guard(t.Context(), b.tx); !errors.Is(err, lease.ErrLost) || !errors.Is(err, lease.ErrUnsure) {
			t.Error(driver, err)
		}
		_ = b.rollback()
		lead.Release()
	}
}

func TestCommit(t *testing.T) {
	l, db := open(t), pool(t, dsn(t))
	group := unique + t.Name()
	do(t, db, `SELECT eskit_lease.group_create($1, 1)`, group)
	defer do(t, db, `SELECT eskit_lease.group_drop($1)`, group)
	ctx, cancel := context.WithCancel(t.Context())
	_ = l.Join(ctx, group, func(ctx context.Context, p *lease.Partition) error {
		defer cancel()
		for driver, begin := range drivers(t) {
			b := begin()
			from, err := p.Position(ctx, b.tx)
			if err != nil {
				t.Error(driver, err)
			}
			for _, moves := range []bool{true, false} {
				if moved, err := p.Commit(ctx, b.tx, from+1, from); err != nil || moved != moves {
					t.Error(driver, moved, err)
				}
			}
			if err := b.commit(); err != nil {
				t.Error(driver, err)
			}
			if _, err := p.Commit(ctx, b.tx, from+2, from+1); !errors.Is(err, lease.ErrNoTransaction) {
				t.Error(driver, err)
			}
			b = begin() // as if two tasks had chosen the same events
			_, err = p.Commit(ctx, b.tx, from+2, from)
			var told *lease.Error
			if !errors.Is(err, lease.ErrRefused) || !errors.As(err, &told) || told.SQLState() != "40001" {
				t.Error(driver, err)
			}
			_ = b.rollback()
		}
		return nil
	})
	if moved := one[int64](t, db, `SELECT eskit_lease.cursor_position($1, 0)`, group); moved != 3 {
		t.Error(moved)
	}
}

func TestLeaseTakenByForce(t *testing.T) {
	l, db := open(t), pool(t, dsn(t))
	name := unique + t.Name()
	ctx, lead := mustLead(t, l, name)
	err := lead.Transaction(ctx, db, func(tx pgx.Tx) error { return errors.New("mine") })
	if err == nil || err.Error() != "mine" {
		t.Error(err)
	}
	do(t, db, `SELECT eskit_lease.lease_force_release($1, $2, 'a test')`, name, lead.Fence())
	select {
	case <-ctx.Done():
	case <-time.After(ttl):
		t.Fatal("was not cancelled")
	}
	if cause := context.Cause(ctx); !errors.Is(cause, lease.ErrLost) {
		t.Error(cause)
	}
	lead.Release()
	if held := one[int](t, db, `SELECT count(*) FROM eskit_lease.leases WHERE resource = $1 AND state = 'held'`, name); held != 0 {
		t.Error("it keeps what it was granted anew")
	}
	_, next := mustLead(t, l, name)
	if next.Fence() <= lead.Fence() {
		t.Error("the same fence")
	}
	next.Release()
}

// A refusal says nothing about trust.
func TestRefusalEndsNoTrust(t *testing.T) {
	l, other := open(t), open(t)
	ctx, own := mustLead(t, l, unique+t.Name()+"own")
	defer own.Release()
	_, others := mustLead(t, other, unique+t.Name())
	defer others.Release()
	if _, lead, err := l.TryLead(t.Context(), unique+t.Name()); lead != nil || err != nil {
		t.Error(err)
	}
	if ctx.Err() != nil || l.State() != lease.Trusted {
		t.Error("a refusal ended trust:", context.Cause(ctx))
	}
}

func TestRefusedByTheServer(t *testing.T) {
	l, db := open(t), pool(t, dsn(t))
	name := unique + t.Name()
	_, lead := mustLead(t, l, name)
	defer lead.Release()
	err := lead.Transaction(t.Context(), db, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `DO $$ BEGIN RAISE 'again' USING ERRCODE = '40001'; END $$`)
		return err
	})
	var told *lease.Error
	if !errors.Is(err, lease.ErrRefused) || !errors.As(err, &told) || told.SQLState() != "40001" {
		t.Error(err)
	}
	if err := lead.Transaction(t.Context(), db, nothing); err != nil {
		t.Error("a refusal ended the scope:", err)
	}
	err = lead.Transaction(t.Context(), db, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `SELECT eskit_lease.fence_check('no such lease', 1)`)
		return err
	})
	if !errors.Is(err, lease.ErrRefused) || !lead.Trusted() {
		t.Error(err)
	}
}

func TestUnsure(t *testing.T) {
	l := open(t)
	p, by := through(t)
	db := pool(t, by)
	name := unique + t.Name()
	ctx, lead := mustLead(t, l, name)
	limited, cancel := context.WithCancel(ctx)
	err := lead.Transaction(limited, db, func(pgx.Tx) error {
		p.forget(true)
		time.AfterFunc(200*time.Millisecond, cancel)
		return nil
	})
	if !errors.Is(err, lease.ErrUnsure) || errors.Is(err, lease.ErrLost) {
		t.Error(err)
	}
	if !errors.Is(context.Cause(ctx), lease.ErrLost) || !errors.Is(context.Cause(ctx), lease.ErrUnsure) {
		t.Error(context.Cause(ctx))
	}
	lead.Release()
	_, next := mustLead(t, l, name)
	if next.Fence() <= lead.Fence() {
		t.Error("the same fence")
	}
	next.Release()
}

// A COMMIT that the server answers by ROLLBACK, or refuses, is an error, and not in doubt.
func TestCommitThatRollsBack(t *testing.T) {
	l, db := open(t), pool(t, dsn(t))
	ctx, lead := mustLead(t, l, unique+t.Name())
	defer lead.Release()
	for _, statement := range []string{
		`SELECT 1/0`,
		`CREATE TEMP TABLE late (n int UNIQUE DEFERRABLE INITIALLY DEFERRED) ON COMMIT DROP; INSERT INTO late VALUES (1), (1)`,
	} {
		err := lead.Transaction(ctx, db, func(tx pgx.Tx) error {
			_, _ = tx.Exec(ctx, statement) // its error is lost
			return nil
		})
		if err == nil || errors.Is(err, lease.ErrUnsure) || !lead.Trusted() {
			t.Error(err)
		}
	}
}

func TestTrustEndsWhileTheNetworkIsSilent(t *testing.T) {
	p, by := through(t)
	var mu sync.Mutex
	var got []lease.State
	l, err := lease.Open(t.Context(), by, lease.WithTTL(ttl), lease.WithStateHook(func(s lease.State) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, s)
	}))
	if err != nil {
		t.Fatal(err)
	}
	ctx, lead := mustLead(t, l, unique+t.Name())
	p.cut()
	if err := lead.Transaction(ctx, pool(t, dsn(t)), nothing); err != nil || !lead.Trusted() {
		t.Error("a lost connection ended the scope:", err)
	}
	time.Sleep(200 * time.Millisecond)
	p.forget(true)
	silent := time.Now()
	<-ctx.Done()
	if took := time.Since(silent); took > ttl+100*time.Millisecond {
		t.Error("trusted for", took)
	}
	if !errors.Is(context.Cause(ctx), lease.ErrLost) {
		t.Error(context.Cause(ctx))
	}
	time.Sleep(ttl) // the session ends
	p.forget(false)
	p.cut()
	lead.Release()
	_, next := mustLead(t, l, unique+t.Name())
	if next.Fence() <= lead.Fence() {
		t.Error("the same fence")
	}
	p.forget(true)
	began := time.Now()
	l.Close()
	if took := time.Since(began); took > ttl+200*time.Millisecond {
		t.Error("closed after", took)
	}
	l.Close()
	time.Sleep(50 * time.Millisecond)
	mu.Lock()
	defer mu.Unlock()
	want := []lease.State{lease.Trusted, lease.Doubting, lease.Lost, lease.Trusted}
	if len(got) < 5 || !slices.Equal(got[:4], want) || got[len(got)-1] != lease.Closed {
		t.Error(got)
	}
}

func TestTakeover(t *testing.T) {
	name := unique + t.Name()
	first := open(t, lease.WithName(name))
	ctx, lead := mustLead(t, first, name)
	second := open(t, lease.WithName(name), lease.WithTakeover())
	<-ctx.Done()
	_, next := mustLead(t, second, name)
	if next.Fence() <= lead.Fence() {
		t.Error("the same fence")
	}
	next.Release()
	lead.Release()
}

func TestJoin(t *testing.T) {
	l, other, db := open(t), open(t), pool(t, dsn(t))
	group := unique + t.Name()
	do(t, db, `SELECT eskit_lease.group_create($1, 4)`, group)
	defer do(t, db, `SELECT eskit_lease.group_drop($1)`, group)
	var mu sync.Mutex
	owners := map[int]int{}
	member := func(who int) func(context.Context, *lease.Partition) error {
		return func(ctx context.Context, p *lease.Partition) error {
			mu.Lock()
			if owners[p.Number] != 0 {
				t.Error("two owners of", p.Number)
			}
			owners[p.Number] = who
			mu.Unlock()
			defer func() {
				mu.Lock()
				delete(owners, p.Number)
				mu.Unlock()
			}()
			err := p.Transaction(ctx, db, func(tx pgx.Tx) error {
				from, err := p.Position(ctx, tx)
				if err != nil {
					return err
				}
				if moved, err := p.Commit(ctx, tx, from+1, from); err != nil || !moved {
					return fmt.Errorf("moved %v: %w", moved, err)
				}
				moved, err := p.Commit(ctx, tx, from+1, from)
				if moved {
					t.Error("moved twice")
				}
				return err
			})
			if err != nil && ctx.Err() == nil {
				t.Error(err)
			}
			<-ctx.Done()
			return ctx.Err()
		}
	}
	owns := func(one, two int) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			count := [3]int{}
			for _, who := range owners {
				count[who]++
			}
			return count[1] == one && count[2] == two
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	joined, drained := make(chan error), make(chan error)
	go func() { joined <- l.Join(ctx, group, member(1)) }()
	eventually(t, "one has all", owns(4, 0))
	go func() { drained <- other.Join(context.Background(), group, member(2)) }()
	eventually(t, "two share", owns(2, 2))
	cancel()
	if err := <-joined; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	eventually(t, "the other has all", owns(0, 4))
	other.Drain(t.Context())
	if err := <-drained; err != nil {
		t.Error(err)
	}
	if err := l.Join(t.Context(), "no such group", member(1)); err == nil {
		t.Error("joined no group")
	}
}

// Partitions then move on while the first member has not begun them.
func TestJoinOfSeveralAtOnce(t *testing.T) {
	db := pool(t, dsn(t))
	group := unique + t.Name()
	do(t, db, `SELECT eskit_lease.group_create($1, 8)`, group)
	defer eventually(t, "the group is dropped", func() bool { // a member may get a partition just as it leaves, for a moment
		_, err := db.Exec(context.Background(), `SELECT eskit_lease.group_drop($1)`, group)
		return err == nil
	})
	members := []*lease.Leases{open(t), open(t), open(t), open(t)}
	for range 5 {
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		owned := make([]atomic.Int32, len(members))
		for i, l := range members {
			all.Go(func() {
				_ = l.Join(ctx, group, func(ctx context.Context, _ *lease.Partition) error {
					owned[i].Add(1)
					defer owned[i].Add(-1)
					<-ctx.Done()
					return ctx.Err()
				})
			})
		}
		eventually(t, "each has its share", func() bool {
			return !slices.ContainsFunc([]int{0, 1, 2, 3}, func(i int) bool { return owned[i].Load() != 2 })
		})
		cancel()
		all.Wait()
	}
}

func TestJoinBeginsAnewAfterAnError(t *testing.T) {
	l, db := open(t), pool(t, dsn(t))
	group := unique + t.Name()
	do(t, db, `SELECT eskit_lease.group_create($1, 1)`, group)
	defer do(t, db, `SELECT eskit_lease.group_drop($1)`, group)
	ctx, cancel := context.WithCancel(t.Context())
	began := time.Now()
	var fences []int64
	err := l.Join(ctx, group, func(ctx context.Context, p *lease.Partition) error {
		if fences = append(fences, p.Fence()); len(fences) == 3 {
			cancel()
		}
		if len(fences) == 1 {
			return nil // it should not have returned
		}
		return errors.New("broken")
	})
	if !errors.Is(err, context.Canceled) || len(slices.Compact(fences)) != 3 {
		t.Error(err, fences)
	}
	if took := time.Since(began); took < 300*time.Millisecond {
		t.Error("without pauses", took)
	}
}

// A member that an administrator removed joins again: 55000 does not mean that its session has ended.
func TestJoinAgain(t *testing.T) {
	l, db := open(t), pool(t, dsn(t))
	group := unique + t.Name()
	do(t, db, `SELECT eskit_lease.group_create($1, 1)`, group)
	defer do(t, db, `SELECT eskit_lease.group_drop($1)`, group)
	ctx, cancel := context.WithCancel(t.Context())
	session, times := l.Session(), 0
	_ = l.Join(ctx, group, func(ctx context.Context, p *lease.Partition) error {
		if times++; times == 2 {
			cancel()
		} else {
			do(t, db, `SELECT eskit_lease.group_leave($1, $2)`, group, session)
		}
		<-ctx.Done()
		return ctx.Err()
	})
	if l.Session() != session || times != 2 {
		t.Error("another session after", times)
	}
}

func TestJoinReturnsWithoutANetwork(t *testing.T) {
	p, by := through(t)
	l, err := lease.Open(t.Context(), by, lease.WithTTL(ttl))
	if err != nil {
		t.Fatal(err)
	}
	db := pool(t, dsn(t))
	group := unique + t.Name()
	do(t, db, `SELECT eskit_lease.group_create($1, 1)`, group)
	ctx, cancel := context.WithCancel(t.Context())
	begun, joined := make(chan bool), make(chan error)
	go func() {
		joined <- l.Join(ctx, group, func(ctx context.Context, _ *lease.Partition) error {
			begun <- true
			<-ctx.Done()
			return nil
		})
	}()
	<-begun
	p.forget(true)
	cancel()
	select {
	case err := <-joined:
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case <-time.After(4 * ttl):
		t.Error("hangs")
	}
	l.Close()
}

func TestWork(t *testing.T) {
	l, db := open(t), pool(t, dsn(t))
	queue := unique + t.Name()
	do(t, db, `SELECT eskit_lease.queue_create($1, retry_backoff => '10 ms')`, queue)
	defer do(t, db, `SELECT eskit_lease.queue_drop($1, items => true)`, queue)
	add := func(n int) {
		do(t, db, `SELECT eskit_lease.item_add($1, jsonb_build_object('n', n), 'key-' || n)
			FROM generate_series(1, $2) AS n`, queue, n)
	}
	add(20)
	var handled, failed, present, most atomic.Int32
	ctx, cancel := context.WithCancel(t.Context())
	worked := make(chan error)
	go func() {
		worked <- l.Work(ctx, queue, 3, db, func(ctx context.Context, tx pgx.Tx, item lease.Item) error {
			most.Store(max(most.Load(), present.Add(1)))
			defer present.Add(-1)
			var payload struct{ N int }
			if err := item.Decode(&payload); err != nil || item.Key != fmt.Sprint("key-", payload.N) || item.Attempt < 1 {
				t.Error(item, err)
			}
			if payload.N%5 == 0 && item.Attempt == 1 {
				failed.Add(1)
				return errors.New("not yet")
			}
			time.Sleep(5 * time.Millisecond)
			handled.Add(1)
			return nil
		})
	}()
	eventually(t, "all are handled", func() bool { return handled.Load() == 20 && failed.Load() == 4 })
	if most.Load() != 3 {
		t.Error("at once:", most.Load())
	}
	add(1) // while it waits
	eventually(t, "one more is handled", func() bool { return handled.Load() == 21 })
	cancel()
	if err := <-worked; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if left := one[int](t, db, `SELECT count(*) FROM eskit_lease.items WHERE queue = $1`, queue); left != 0 {
		t.Error("left:", left)
	}
	if err := l.Work(t.Context(), "no such queue", 1, db, nil); err == nil {
		t.Error("worked on no queue")
	}
	if err := l.Work(t.Context(), queue, 0, db, nil); err == nil {
		t.Error("worked with no handler")
	}
}

func TestWorkGivesBackWhatHasNotBegun(t *testing.T) {
	l, db := open(t), pool(t, dsn(t))
	queue := unique + t.Name()
	do(t, db, `SELECT eskit_lease.queue_create($1)`, queue)
	defer do(t, db, `SELECT eskit_lease.queue_drop($1, items => true)`, queue)
	do(t, db, `SELECT eskit_lease.item_add($1, '{}')`, queue)
	ctx, cancel := context.WithCancel(t.Context())
	worked := make(chan error)
	go func() { worked <- l.Work(ctx, queue, 1, busy{}, nil) }()
	state := func() string {
		return one[string](t, db, `SELECT state FROM eskit_lease.items WHERE queue = $1`, queue)
	}
	eventually(t, "is claimed", func() bool { return state() == "claimed" })
	cancel()
	<-worked
	if state() != "ready" {
		t.Error(state())
	}
}

// busy is a pool without a free connection.
type busy struct{}

func (busy) Begin(ctx context.Context) (pgx.Tx, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// An answer of item_claim that is lost leaves items claimed that nobody handles.
func TestWorkGivesBackWhatALostAnswerClaimed(t *testing.T) {
	db := pool(t, dsn(t))
	role := fmt.Sprint("go_test_", os.Getpid())
	do(t, db, `CREATE ROLE `+role+` LOGIN PASSWORD 'only for this test'`)
	do(t, db, `SELECT eskit_lease.grant_consumer($1)`, role)
	defer do(t, db, `DROP OWNED BY `+role+`; DROP ROLE `+role)
	// A mere consumer may not look for the items, and ends its session.
	for user, attempt := range map[string]int{"": 1, role: 2} {
		t.Run("as "+user, func(t *testing.T) {
			p, by := through(t)
			if user != "" {
				u, _ := url.Parse(by)
				u.User = url.UserPassword(user, "only for this test")
				by = u.String()
			}
			var log logged
			l, err := lease.Open(t.Context(), by, lease.WithTTL(4*time.Second), log.option())
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			queue := unique + t.Name()
			do(t, db, `SELECT eskit_lease.queue_create($1)`, queue)
			defer do(t, db, `SELECT eskit_lease.queue_drop($1, items => true)`, queue)
			_, lead := mustLead(t, l, queue) // so the second connection is open
			do(t, db, `SELECT eskit_lease.item_add($1, '{}')`, queue)
			handled := make(chan lease.Item, 1)
			time.Sleep(200 * time.Millisecond) // until the lead asks no more
			p.forget(true)
			ctx, cancel := context.WithCancel(t.Context())
			worked := make(chan error)
			go func() {
				worked <- l.Work(ctx, queue, 1, db, func(_ context.Context, _ pgx.Tx, item lease.Item) error {
					handled <- item
					return nil
				})
			}()
			eventually(t, "is claimed", func() bool {
				return one[string](t, db, `SELECT state FROM eskit_lease.items WHERE queue = $1`, queue) == "claimed"
			})
			p.forget(false)
			p.cut()
			select {
			case item := <-handled:
				if item.Attempt != attempt {
					t.Error("attempt", item.Attempt)
				}
			case <-time.After(10 * time.Second):
				t.Error("is never handled")
			}
			if log.count("grant_monitor") != attempt-1 || log.count("another process") != 0 {
				t.Error(log.text.String())
			}
			cancel()
			<-worked
			lead.Release()
		})
	}
}

func TestOnce(t *testing.T) {
	l, other := open(t), open(t)
	key := unique + t.Name()
	began, goOn := make(chan int64), make(chan bool)
	first := make(chan lease.Outcome)
	go func() {
		outcome, err := l.Once(t.Context(), key, func(_ context.Context, fence int64) (any, error) {
			began <- fence
			<-goOn
			return map[string]int{"n": 7}, nil
		})
		if err != nil {
			t.Error(err)
		}
		first <- outcome
	}()
	if fence := <-began; fence == 0 {
		t.Error("no fence")
	}
	never := func(context.Context, int64) (any, error) {
		t.Error("called twice")
		return nil, nil
	}
	if outcome, err := other.Once(t.Context(), key, never); err != nil || outcome.First || outcome.State != "running" {
		t.Error(outcome, err)
	}
	goOn <- true
	if outcome := <-first; !outcome.First || outcome.State != "done" || string(outcome.Result) != `{"n":7}` {
		t.Error(outcome)
	}
	outcome, err := other.Once(t.Context(), key, never)
	if err != nil || outcome.State != "done" || string(outcome.Result) != `{"n": 7}` {
		t.Error(outcome, err)
	}

	key += "failing"
	broken := errors.New("broken")
	fail := func(context.Context, int64) (any, error) { return nil, broken }
	for range 2 { // the next call runs it again
		outcome, err := l.Once(t.Context(), key, fail)
		if !errors.Is(err, broken) || !outcome.First || outcome.State != "failed" {
			t.Error(outcome, err)
		}
	}
	key += "unsure"
	lost := func(context.Context, int64) (any, error) { return nil, fmt.Errorf("far away: %w", lease.ErrUnsure) }
	if outcome, err := l.Once(t.Context(), key, lost); !errors.Is(err, lease.ErrUnsure) || outcome.State != "failed" {
		t.Error(outcome, err)
	}
	if outcome, err := l.Once(t.Context(), key, never); err != nil || outcome.State != "failed" || outcome.First {
		t.Error(outcome, err)
	}
	key += "large" // a result that the server refuses must not let the function run again
	large := func(context.Context, int64) (any, error) { return strings.Repeat("x", 2<<20), nil }
	if outcome, err := l.Once(t.Context(), key, large); err == nil || outcome.State != "failed" {
		t.Error(outcome.State, err)
	}
	if outcome, err := l.Once(t.Context(), key, never); err != nil || outcome.State != "failed" {
		t.Error(outcome, err)
	}
}

func TestNews(t *testing.T) {
	db := pool(t, dsn(t))
	do(t, db, `CREATE TABLE IF NOT EXISTS go_test_events (
		position bigint PRIMARY KEY DEFAULT eskit_lease.position_next())`)
	defer do(t, db, `DROP TABLE go_test_events`)
	l := open(t, lease.WithWatch("go_test_events"))
	ctx, lead := mustLead(t, l, unique+t.Name())
	ask := func(limit time.Duration) error {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		return lead.News(ctx)
	}
	for ask(300*time.Millisecond) == nil { // the first ones may be in vain
	}
	do(t, db, `INSERT INTO go_test_events DEFAULT VALUES`)
	if err := ask(time.Second); err != nil {
		t.Error(err)
	}
	for ask(300*time.Millisecond) == nil {
	}
	do(t, db, `INSERT INTO go_test_events DEFAULT VALUES`)
	time.Sleep(200 * time.Millisecond) // news while the loop reads
	if err := ask(10 * time.Millisecond); err != nil {
		t.Error(err)
	}
	go func() {
		time.Sleep(50 * time.Millisecond)
		lead.Release()
	}()
	for ended := time.Now().Add(time.Second); !errors.Is(lead.News(t.Context()), lease.ErrLost); {
		if time.Now().After(ended) {
			t.Fatal("waits for a scope that has ended")
		}
	}
}

func TestWatchOfNoTable(t *testing.T) {
	db := pool(t, dsn(t))
	if _, err := lease.Open(t.Context(), dsn(t), lease.WithWatch("no_such_table")); err == nil ||
		!strings.Contains(err.Error(), "cannot watch no_such_table") {
		t.Error(err)
	}
	do(t, db, `CREATE TABLE go_test_dropped (position bigint PRIMARY KEY DEFAULT eskit_lease.position_next())`)
	l := open(t, lease.WithWatch("go_test_dropped"))
	do(t, db, `DROP TABLE go_test_dropped`)
	ctx, lead := mustLead(t, l, unique+t.Name())
	defer lead.Release()
	// A new connection begins the watch again.
	do(t, db, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%session_wait%' AND query LIKE 'SELECT alive%'`)
	select {
	case <-ctx.Done():
		t.Error("trust ended with the table:", context.Cause(ctx))
	case <-time.After(2 * ttl):
	}
}

// A connection that is still being made when the keeper closes is closed, too.
func TestCloseWhileConnecting(t *testing.T) {
	var made atomic.Uint32 // its process
	db := pool(t, dsn(t))
	connecting, goOn := make(chan bool, 10), make(chan bool)
	l := open(t, lease.WithConnect(func(ctx context.Context) (*pgx.Conn, error) {
		if len(connecting) == 0 {
			connecting <- true
			return pgx.Connect(ctx, dsn(t))
		}
		if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > ttl {
			t.Error("connects without a deadline")
		}
		connecting <- true
		<-goOn // as if it had been made, but nobody had looked
		conn, err := pgx.Connect(context.WithoutCancel(ctx), dsn(t))
		if err == nil {
			made.Store(conn.PgConn().PID())
		}
		return conn, err
	}))
	led := make(chan error)
	go func() {
		_, _, err := l.Lead(t.Context(), unique+t.Name())
		led <- err
	}()
	eventually(t, "it connects", func() bool { return len(connecting) == 2 })
	go l.Close()
	time.Sleep(100 * time.Millisecond)
	close(goOn)
	if err := <-led; !errors.Is(err, lease.ErrClosed) {
		t.Error(err)
	}
	eventually(t, "it is closed", func() bool {
		return made.Load() != 0 && !one[bool](t, db, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1::int8)`, made.Load())
	})
}

func TestDrain(t *testing.T) {
	l, db := open(t), pool(t, dsn(t))
	ctx, lead := mustLead(t, l, unique+t.Name())
	_, stubborn := mustLead(t, l, unique+t.Name()+"stubborn")
	waits := make(chan error)
	go func() {
		_, _, err := l.Lead(context.Background(), unique+t.Name())
		waits <- err
	}()
	go func() {
		<-l.Draining()
		if err := lead.Transaction(ctx, db, nothing); err != nil {
			t.Error("what has begun may finish:", err)
		}
		lead.Release()
		<-stubborn.Context().Done() // until it is cancelled
		stubborn.Release()
	}()
	time.Sleep(50 * time.Millisecond)
	limited, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	began := time.Now()
	l.Drain(limited)
	if took := time.Since(began); took < 400*time.Millisecond || took > time.Second {
		t.Error("drained in", took)
	}
	if err := <-waits; !errors.Is(err, lease.ErrClosed) {
		t.Error(err)
	}
	if l.State() != lease.Closed || l.Session() != "" {
		t.Error(l.State())
	}
	l.Drain(t.Context())
	if _, _, err := l.Lead(t.Context(), "x"); !errors.Is(err, lease.ErrClosed) {
		t.Error(err)
	}
}

func TestDrainOnSignal(t *testing.T) {
	l := open(t)
	l.DrainOn(time.Second, syscall.SIGUSR1)
	if err := syscall.Kill(os.Getpid(), syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	eventually(t, "closed", func() bool { return l.State() == lease.Closed })
}

func TestServersOwnLimits(t *testing.T) {
	connect := func(ctx context.Context) (*pgx.Conn, error) {
		config, err := pgx.ParseConfig(dsn(t))
		if err != nil {
			return nil, err
		}
		config.RuntimeParams["statement_timeout"] = "300"
		return pgx.ConnectConfig(ctx, config)
	}
	l, err := lease.Open(t.Context(), "", lease.WithConnect(connect), lease.WithTTL(ttl))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, lead := mustLead(t, l, unique+t.Name())
	select {
	case <-ctx.Done():
		t.Error(context.Cause(ctx))
	case <-time.After(2 * ttl):
	}
	lead.Release()
}
