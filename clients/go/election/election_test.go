package election_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"eskit.dev/lease"
	"eskit.dev/lease/election"
)

const ttl = 2 * time.Second

var unique = fmt.Sprintf("go-election-%d-%d-", os.Getpid(), time.Now().Unix())

func open(t *testing.T, name string, options ...lease.Option) *lease.Leases {
	t.Helper()
	dsn := os.Getenv("DATABASE_URL")
	if dsn == "" {
		t.Skip("DATABASE_URL is not set")
	}
	options = append([]lease.Option{lease.WithName(unique + name), lease.WithTTL(ttl)}, options...)
	l, err := lease.Open(t.Context(), dsn, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

func pool(t *testing.T) *pgxpool.Pool {
	t.Helper()
	db, err := pgxpool.New(context.Background(), os.Getenv("DATABASE_URL"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return db
}

// candidate is an elector, and what its callbacks were told.
type candidate struct {
	*election.Elector
	started, stopped atomic.Int32
	mu               sync.Mutex
	leaders          []string
	cancel           context.CancelFunc
	done             chan error
}

func run(t *testing.T, l *lease.Leases, name string, db *pgxpool.Pool) *candidate {
	t.Helper()
	c := &candidate{done: make(chan error, 1)}
	config := election.Config{Leases: l, Name: name, RetryPeriod: 20 * time.Millisecond, Callbacks: election.Callbacks{
		OnStartedLeading: func(ctx context.Context, _ *lease.Lead) {
			c.started.Add(1)
			<-ctx.Done()
		},
		OnStoppedLeading: func() { c.stopped.Add(1) },
		OnNewLeader: func(name string) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.leaders = append(c.leaders, name)
		},
	}}
	if db != nil {
		config.DB = db
	}
	var err error
	if c.Elector, err = election.New(config); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	c.cancel = cancel
	go func() { c.done <- c.Run(ctx) }()
	return c
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(3 * ttl); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never: " + what)
		}
	}
}

func TestConfig(t *testing.T) {
	whole := election.Config{Leases: &lease.Leases{}, Name: "x", Callbacks: election.Callbacks{
		OnStartedLeading: func(context.Context, *lease.Lead) {}, OnStoppedLeading: func() {}}}
	if _, err := election.New(whole); err != nil {
		t.Error(err)
	}
	for what, spoil := range map[string]func(*election.Config){
		"leases":      func(c *election.Config) { c.Leases = nil },
		"name":        func(c *election.Config) { c.Name = "" },
		"started":     func(c *election.Config) { c.Callbacks.OnStartedLeading = nil },
		"stopped":     func(c *election.Config) { c.Callbacks.OnStoppedLeading = nil },
		"retryPeriod": func(c *election.Config) { c.RetryPeriod = -1 },
	} {
		config := whole
		spoil(&config)
		if _, err := election.New(config); err == nil {
			t.Error("accepted without", what)
		}
	}
}

// The cases of client-go: acquire what has no holder, renew it, do not acquire what another has, acquire what was
// released.
func TestAcquireRenewRelease(t *testing.T) {
	la, lb := open(t, "a"), open(t, "b")
	db := pool(t)
	a := run(t, la, unique+t.Name(), db)
	eventually(t, "a leads", a.IsLeader)
	b := run(t, lb, unique+t.Name(), db)
	eventually(t, "b sees a", func() bool { return b.GetLeader() == la.Name() })
	time.Sleep(ttl + ttl/2) // a renews
	if !a.IsLeader() || b.IsLeader() || a.started.Load() != 1 || b.started.Load() != 0 {
		t.Error("a should lead, and b not")
	}
	began := time.Now()
	a.cancel()
	eventually(t, "b leads", b.IsLeader)
	if took := time.Since(began); took > ttl/2 {
		t.Error("a did not release on cancel, b waited", took)
	}
	if err := <-a.done; !errors.Is(err, context.Canceled) || a.stopped.Load() != 1 || a.IsLeader() || a.GetLeader() != "" {
		t.Error(err, a.stopped.Load())
	}
	b.cancel()
	<-b.done
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Equal(b.leaders, []string{la.Name(), lb.Name()}) {
		t.Error(b.leaders)
	}
}

// A leader that vanishes is followed once its session has ended.
func TestAcquireFromALeaderThatEnded(t *testing.T) {
	la, lb := open(t, "a"), open(t, "b")
	a := run(t, la, unique+t.Name(), nil)
	eventually(t, "a leads", a.IsLeader)
	b := run(t, lb, unique+t.Name(), nil)
	if _, err := pool(t).Exec(t.Context(), `SELECT eskit_lease.session_close($1)`, la.Session()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "b leads", b.IsLeader)
	if err := <-a.done; !errors.Is(err, lease.ErrLost) || a.stopped.Load() != 1 {
		t.Error(err)
	}
	b.cancel()
	<-b.done
}

// OnStoppedLeading is called even if this process never led.
func TestStoppedWithoutHavingLed(t *testing.T) {
	la, lb := open(t, "a"), open(t, "b")
	a := run(t, la, unique+t.Name(), nil)
	eventually(t, "a leads", a.IsLeader)
	b := run(t, lb, unique+t.Name(), nil)
	time.Sleep(50 * time.Millisecond)
	b.cancel()
	if err := <-b.done; !errors.Is(err, context.Canceled) || b.stopped.Load() != 1 || b.started.Load() != 0 {
		t.Error(err)
	}
	lb.Close()
	if err := b.RunForever(t.Context()); !errors.Is(err, lease.ErrClosed) {
		t.Error(err)
	}
	a.cancel()
	<-a.done
}

// The leader's own TTL counts, not that of the candidate that waits.
func TestTheLeadersOwnTTLCounts(t *testing.T) {
	gone := open(t, "gone", lease.WithConnect(onlyUntil(t, time.Now().Add(ttl))))
	a := run(t, gone, unique+t.Name(), nil)
	eventually(t, "a leads", a.IsLeader)
	b := run(t, open(t, "b", lease.WithTTL(10*ttl)), unique+t.Name(), nil)
	eventually(t, "b leads", b.IsLeader) // within 3 of the leader's TTLs
	if err := <-a.done; !errors.Is(err, lease.ErrLost) || a.stopped.Load() != 1 {
		t.Error(err)
	}
	b.cancel()
	<-b.done
}

// onlyUntil makes connections of which none is left after a time, and no new one can be made.
func onlyUntil(t *testing.T, end time.Time) func(context.Context) (*pgx.Conn, error) {
	return func(ctx context.Context) (*pgx.Conn, error) {
		if time.Now().After(end) {
			return nil, errors.New("no network")
		}
		conn, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
		if err == nil {
			cut := time.AfterFunc(time.Until(end), func() { _ = conn.PgConn().Conn().Close() })
			t.Cleanup(func() { cut.Stop() })
		}
		return conn, err
	}
}

// A candidacy that is cancelled leaves no lease behind, whichever call is under way.
func TestReleaseOnCancellation(t *testing.T) {
	la, lb := open(t, "a"), open(t, "b")
	name := unique + t.Name()
	for range 30 {
		a := run(t, la, name, nil)
		time.Sleep(time.Duration(rand.IntN(10_000)) * time.Microsecond)
		a.cancel()
		<-a.done
		if a.stopped.Load() != 1 {
			t.Error("OnStoppedLeading was called", a.stopped.Load(), "times")
		}
		eventually(t, "it is free", func() bool {
			_, lead, err := lb.TryLead(t.Context(), name)
			lead.Release()
			return err == nil && lead != nil
		})
	}
}

// OnStoppedLeading does not wait for work that heeds no context; the lease does.
func TestStoppedBeforeTheWorkEnds(t *testing.T) {
	la, lb := open(t, "a"), open(t, "b")
	working, stopped, end := make(chan struct{}), make(chan struct{}), make(chan struct{})
	e, err := election.New(election.Config{Leases: la, Name: unique + t.Name(), Callbacks: election.Callbacks{
		OnStartedLeading: func(context.Context, *lease.Lead) {
			close(working)
			<-end
		},
		OnStoppedLeading: func() { close(stopped) },
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- e.Run(ctx) }()
	<-working
	cancel()
	<-stopped
	if _, lead, err := lb.TryLead(t.Context(), unique+t.Name()); lead != nil || err != nil || e.IsLeader() {
		t.Error("released before the work ended", err)
	}
	close(end)
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, lead, err := lb.TryLead(t.Context(), unique+t.Name()); lead == nil {
		t.Error("not released", err)
	}
}

// N instances, M subscriptions, in one process: one closes, one drains, and each subscription always has at most one leader.
func TestInstancesAndSubscriptions(t *testing.T) {
	const instances, subscriptions = 3, 6
	var leases [instances]*lease.Leases
	for i := range leases {
		leases[i] = open(t, fmt.Sprint(i))
	}
	var leaders [subscriptions]atomic.Int32
	var led [instances]atomic.Int32
	var all sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	for i, l := range leases {
		for m := range subscriptions {
			name := fmt.Sprint(unique, t.Name(), m)
			e, err := election.New(election.Config{Leases: l, Name: name, Callbacks: election.Callbacks{
				OnStartedLeading: func(ctx context.Context, _ *lease.Lead) {
					if leaders[m].Add(1) != 1 {
						t.Error("two leaders")
					}
					led[i].Add(1)
					select {
					case <-ctx.Done():
					case <-l.Draining():
					}
					led[i].Add(-1)
					leaders[m].Add(-1)
				},
				OnStoppedLeading: func() {},
			}})
			if err != nil {
				t.Fatal(err)
			}
			all.Go(func() { _ = e.RunForever(ctx) })
		}
	}
	total := func() (n int32) {
		for i := range leaders {
			n += leaders[i].Load()
		}
		return n
	}
	eventually(t, "each has a leader", func() bool { return total() == subscriptions })
	leases[0].Close()
	eventually(t, "each has a leader after a close", func() bool { return total() == subscriptions && led[0].Load() == 0 })
	limited, stop := context.WithTimeout(t.Context(), 5*time.Second)
	defer stop()
	leases[1].Drain(limited)
	eventually(t, "one has all", func() bool { return led[2].Load() == subscriptions })
	cancel()
	all.Wait()
}

func TestLocks(t *testing.T) {
	a, b := election.Locks{Leases: open(t, "a")}, election.Locks{Leases: open(t, "b")}
	id := unique + t.Name()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	release, err := a.Acquire(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := b.TryAcquire(id); ok {
		t.Error("two have it")
	}
	if _, ok := a.TryAcquire(id); ok {
		t.Error("two have it")
	}
	<-ctx.Done() // limits the wait, not the lock
	if _, ok := b.TryAcquire(id); ok {
		t.Error("the lock ended with the limit of the wait")
	}
	short, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer stop()
	if _, err := b.Acquire(short, id); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	release()
	eventually(t, "it is free", func() bool { // once b has given its place up
		release, ok := b.TryAcquire(id)
		if ok {
			release()
		}
		return ok
	})
}

// A refusal that stays ends RunForever; no callback was told that a leadership had ended.
func TestRefusalThatStays(t *testing.T) {
	l := open(t, "a")
	var stopped atomic.Int32
	e, err := election.New(election.Config{Leases: l, Name: strings.Repeat("x", 400), Callbacks: election.Callbacks{
		OnStartedLeading: func(context.Context, *lease.Lead) {},
		OnStoppedLeading: func() { stopped.Add(1) },
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	var told interface{ SQLState() string }
	if err := e.RunForever(ctx); !errors.As(err, &told) || told.SQLState() != "22023" || stopped.Load() != 0 {
		t.Error(err, stopped.Load())
	}
}
