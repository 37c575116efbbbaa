package lease_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"eskit.dev/lease"
)

func code(err error) string {
	var told interface{ SQLState() string }
	if errors.As(err, &told) {
		return told.SQLState()
	}
	return ""
}

// openAs opens a keeper as a mere consumer, and returns how to grant it rights, and to revoke them.
func openAs(t *testing.T, options ...lease.Option) (l *lease.Leases, grant, revoke func(right string)) {
	db := pool(t, dsn(t))
	role, by := asConsumer(t, db, dsn(t))
	l, err := lease.Open(t.Context(), by, append([]lease.Option{lease.WithTTL(ttl)}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l, func(right string) { do(t, db, `GRANT `+right+` TO `+role) },
		func(right string) { do(t, db, `REVOKE `+right+` FROM `+role) }
}

// An error of the server is no refusal: the caller is told.
func TestTryLeadTellsAnError(t *testing.T) {
	u, err := url.Parse(dsn(t))
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprint("go_test_broken_", os.Getpid())
	db := pool(t, dsn(t))
	do(t, db, `CREATE DATABASE `+name)
	t.Cleanup(func() { do(t, db, `DROP DATABASE `+name+` WITH (FORCE)`) })
	u.Path = "/" + name
	broken := pool(t, u.String())
	do(t, broken, `CREATE EXTENSION eskit_lease`)
	do(t, broken, `CREATE OR REPLACE FUNCTION eskit_lease.lease_acquire(resource text, session uuid, queue boolean = false)
		RETURNS eskit_lease.lease_answer LANGUAGE plpgsql AS $$
		BEGIN RAISE 'an object is missing' USING ERRCODE = '55000'; END $$`)
	l, err := lease.Open(t.Context(), u.String(), lease.WithTTL(ttl))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, lead, err := l.TryLead(t.Context(), "x"); lead != nil || code(err) != "55000" {
		t.Error(err)
	}
}

const (
	releaseRight     = `EXECUTE ON FUNCTION eskit_lease.lease_release(text, bigint, interval)`
	releaseManyRight = `EXECUTE ON FUNCTION eskit_lease.lease_release_many(text[], uuid)`
)

// A lease whose release was refused is released in another way: another process has it at once.
func TestReleaseThatIsRefused(t *testing.T) {
	l, _, revoke := openAs(t)
	name := unique + t.Name()
	_, lead := mustLead(t, l, name)
	revoke(releaseRight)
	lead.Release()
	ctx, cancel := context.WithTimeout(t.Context(), ttl)
	defer cancel()
	_, next, err := open(t).Lead(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	next.Release()
}

// A lease that could not be released at all serves no second scope under its fence.
func TestLeadUnderNoUsedFence(t *testing.T) {
	l, grant, revoke := openAs(t)
	name := unique + t.Name()
	_, lead := mustLead(t, l, name)
	revoke(releaseRight)
	revoke(releaseManyRight)
	lead.Release()
	if _, second, err := l.TryLead(t.Context(), name); second != nil || code(err) != "42501" {
		t.Error("leads again:", err)
		second.Release()
	}
	grant(releaseManyRight)
	_, third := mustLead(t, l, name)
	if third.Fence() <= lead.Fence() {
		t.Error("fence", third.Fence(), "after", lead.Fence())
	}
	third.Release()
}

// A partition that could not be released serves no second task under its fence, also not of the next Join.
func TestJoinUnderNoUsedFence(t *testing.T) {
	const right = `EXECUTE ON FUNCTION eskit_lease.group_release(text, int, bigint)`
	const leaveRight = `EXECUTE ON FUNCTION eskit_lease.group_leave(text, uuid)`
	db, group := pool(t, dsn(t)), unique+t.Name()
	do(t, db, `SELECT eskit_lease.group_create($1, 1)`, group)
	t.Cleanup(func() { do(t, db, `SELECT eskit_lease.group_drop($1)`, group) })
	l, grant, revoke := openAs(t)
	var fences []int64
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 10*ttl)
		defer cancel()
		begun := 0
		_ = l.Join(ctx, group, func(ctx context.Context, p *lease.Partition) error {
			fences = append(fences, p.Fence())
			if begun++; begun == 1 {
				revoke(right)
				time.AfterFunc(ttl/2, func() { grant(right) })
				return lease.ErrRefused
			}
			revoke(leaveRight)
			cancel()
			return nil
		})
		grant(leaveRight)
	}
	if len(fences) != 4 || len(slices.Compact(slices.Sorted(slices.Values(fences)))) != 4 {
		t.Error(fences)
	}
}

// A session may hold the name under another fence when the scope ends: it keeps nothing.
func TestReleaseUnderAnotherFence(t *testing.T) {
	l, db := open(t), pool(t, dsn(t))
	name := unique + t.Name()
	_, lead := mustLead(t, l, name)
	lead.Unsure() // so it asks no more
	do(t, db, `SELECT eskit_lease.lease_force_release($1, $2, 'a test')`, name, lead.Fence())
	do(t, db, `SELECT eskit_lease.lease_acquire($1, $2)`, name, lead.Session())
	lead.Release()
	if _, next, err := open(t).TryLead(t.Context(), name); next == nil {
		t.Error("it is kept", err)
	}
}

// What a call has taken whose answer was lost is given back also if the call is refused when it is made again.
func TestLeadThatIsRefusedAfterALostAnswer(t *testing.T) {
	const right = `EXECUTE ON FUNCTION eskit_lease.lease_acquire(text, uuid, boolean)`
	db := pool(t, dsn(t))
	p, by := through(t)
	role, by := asConsumer(t, db, by)
	l, err := lease.Open(t.Context(), by, lease.WithTTL(2*ttl))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	name := unique + t.Name()
	_, lead := mustLead(t, l, name+"other") // so the second connection is open
	lead.Release()
	p.forget(true)
	led := make(chan error, 1)
	go func() {
		_, _, err := l.Lead(t.Context(), name)
		led <- err
	}()
	isHeld := func() bool {
		return one[bool](t, db, `SELECT EXISTS (SELECT FROM eskit_lease.leases WHERE resource = $1 AND state = 'held')`, name)
	}
	eventually(t, "it is granted", isHeld)
	do(t, db, `REVOKE `+right+` FROM `+role)
	p.cut()
	p.forget(false)
	if err := <-led; code(err) != "42501" {
		t.Error(err)
	}
	eventually(t, "it is given back", func() bool { return !isHeld() })
}

// A server that lets no connection in has answered no call: the member stays, and looks again.
func TestJoinWhileNoConnectionIsLetIn(t *testing.T) {
	db, group := pool(t, dsn(t)), unique+t.Name()
	do(t, db, `SELECT eskit_lease.group_create($1, 2)`, group)
	t.Cleanup(func() { do(t, db, `SELECT eskit_lease.group_drop($1)`, group) })
	config, err := pgx.ParseConfig(dsn(t))
	if err != nil {
		t.Fatal(err)
	}
	config.RuntimeParams["application_name"] = unique
	var refuses atomic.Bool
	var refused atomic.Int32
	l := open(t, lease.WithConnect(func(ctx context.Context) (*pgx.Conn, error) {
		if refuses.Load() {
			refused.Add(1)
			return nil, &pgconn.PgError{Severity: "FATAL", Code: "42501", Message: "permission denied for database"}
		}
		return pgx.ConnectConfig(ctx, config)
	}))
	var owned [2]atomic.Int32
	ended := make(chan error, 2)
	join := func(who int, l *lease.Leases) {
		ended <- l.Join(t.Context(), group, func(ctx context.Context, _ *lease.Partition) error {
			defer owned[who].Add(-1)
			owned[who].Add(1)
			<-ctx.Done()
			return nil
		})
	}
	go join(0, l)
	eventually(t, "one owns all", func() bool { return owned[0].Load() == 2 })
	refuses.Store(true)
	do(t, db, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE application_name = $1 AND query NOT LIKE '%session_wait%'`, unique)
	go join(1, open(t))
	eventually(t, "it looks", func() bool { return refused.Load() > 1 })
	refuses.Store(false)
	eventually(t, "they share", func() bool { return owned[0].Load() == 1 && owned[1].Load() == 1 })
	if len(ended) > 0 {
		t.Error(<-ended)
	}
}

// An item whose failure the server does not take is given back: else it would stay claimed for as long as the session.
func TestFailureThatIsRefused(t *testing.T) {
	db, queue := pool(t, dsn(t)), unique+t.Name()
	do(t, db, `SELECT eskit_lease.queue_create($1), eskit_lease.item_add($1, '1')`, queue)
	t.Cleanup(func() { do(t, db, `SELECT eskit_lease.queue_drop($1, items => true)`, queue) })
	l, _, revoke := openAs(t)
	revoke(`EXECUTE ON FUNCTION eskit_lease.item_fail(bigint, bigint, text, interval)`)
	ctx, cancel := context.WithCancel(t.Context())
	_ = l.Work(ctx, queue, 1, db, func(context.Context, pgx.Tx, lease.Item) error {
		cancel()
		return errors.New("broken")
	})
	if state := one[string](t, db, `SELECT state FROM eskit_lease.items WHERE queue = $1`, queue); state != "ready" {
		t.Error(state)
	}
}
