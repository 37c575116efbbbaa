package election_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"eskit.dev/lease"
	"eskit.dev/lease/election"
)

// These tests start processes of their own program: each is one instance of an application.

const subscriptions = 12

func TestMain(m *testing.M) {
	if name := os.Getenv("ELECTION_INSTANCE"); name != "" {
		if err := instance(name, os.Getenv("ELECTION_RUN")); err != nil {
			slog.Error(name, "error", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// instance takes part in the election of each subscription, and in the turns of a lock, until SIGTERM. While it leads it
// writes, under guard.
func instance(name, run string) error {
	ctx := context.Background()
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	// Otherwise a process that is stopped within a guarded transaction keeps its lease.
	config.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = "500"
	db, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	leases, err := lease.Open(ctx, os.Getenv("DATABASE_URL"), lease.WithName(name), lease.WithTTL(ttl),
		lease.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return err
	}
	defer leases.Close()
	leases.DrainOn(ttl, syscall.SIGTERM)
	for n := range subscriptions {
		elector, err := election.New(election.Config{Leases: leases, Name: fmt.Sprint(run, n), Callbacks: election.Callbacks{
			OnStartedLeading: func(ctx context.Context, lead *lease.Lead) { write(ctx, leases, lead, db) },
			OnStoppedLeading: func() {},
		}})
		if err != nil {
			return err
		}
		go func() { _ = elector.RunForever(ctx) }()
	}
	for {
		release, err := election.Locks{Leases: leases}.Acquire(ctx, run+"lock")
		if err != nil {
			break // it drains
		}
		time.Sleep(20 * time.Millisecond)
		release()
	}
	<-leases.Draining()
	return nil
}

// write writes while it may. It begins a transaction even when its context has ended: the fence must hold alone.
func write(ctx context.Context, leases *lease.Leases, lead *lease.Lead, db *pgxpool.Pool) {
	for ctx.Err() == nil {
		_ = pgx.BeginFunc(context.WithoutCancel(ctx), db, func(tx pgx.Tx) error {
			var checked bool
			if err := tx.QueryRow(context.Background(), `SELECT true FROM eskit_lease.fence_check($1, $2)`,
				lead.Name(), lead.Fence()).Scan(&checked); err != nil {
				return err
			}
			_, err := tx.Exec(context.Background(), `INSERT INTO election_writes (name, fence, consumer) VALUES ($1, $2, $3)`,
				lead.Name(), lead.Fence(), leases.Name())
			return err
		})
		select {
		case <-time.After(20 * time.Millisecond):
		case <-leases.Draining():
			return
		}
	}
}

// N instances, M subscriptions, in processes of their own: one is killed, one is stopped beyond its TTL, one drains.
func TestProcesses(t *testing.T) {
	if os.Getenv("DATABASE_URL") == "" {
		t.Skip("DATABASE_URL is not set")
	}
	db := pool(t)
	if _, err := db.Exec(t.Context(), `CREATE TABLE IF NOT EXISTS election_writes (id bigserial, name text, fence bigint,
		consumer text)`); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = db.Exec(context.Background(), `DROP TABLE election_writes`) }) // once all are killed
	run := unique + t.Name()
	started := map[string]*exec.Cmd{}
	start := func(name string) {
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), "ELECTION_INSTANCE="+unique+name, "ELECTION_RUN="+run)
		c.Stderr = os.Stderr
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		started[name] = c
		t.Cleanup(func() {
			_ = c.Process.Kill()
			_ = c.Wait()
		})
	}
	holds := func(names ...string) (n int) { // how many subscriptions
		for i := range names {
			names[i] = unique + names[i]
		}
		if err := db.QueryRow(context.Background(), `SELECT count(*) FROM eskit_lease.leases WHERE state = 'held'
			AND resource LIKE $1 || '%' AND resource <> $1 || 'lock' AND consumer = ANY ($2)`, run, names).Scan(&n); err != nil {
			t.Error(err)
		}
		return n
	}
	const all = subscriptions
	locks := election.Locks{Leases: open(t, "watcher")}
	locked := func() bool { // waits in line for the lock
		ctx, cancel := context.WithTimeout(t.Context(), 3*ttl)
		defer cancel()
		release, err := locks.Acquire(ctx, run+"lock")
		if err == nil {
			release()
		}
		return err == nil
	}
	within := func(limit time.Duration, what string, is func() bool) {
		t.Helper()
		began := time.Now()
		eventually(t, what, is)
		if took := time.Since(began); took > limit {
			t.Errorf("%s: took %v", what, took)
		}
	}

	start("killed") // leads all
	eventually(t, "the first has all", func() bool { return holds("killed") == all })
	start("stopped")
	start("drained")
	start("last")
	time.Sleep(ttl / 2) // they wait in line
	if err := started["killed"].Process.Kill(); err != nil {
		t.Fatal(err)
	}
	within(ttl+time.Second, "others have all after a kill", func() bool { return holds("stopped", "drained", "last") == all })
	within(ttl+time.Second, "the lock is free after a kill", locked)

	if err := started["stopped"].Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	within(ttl+time.Second, "others have all of one that is stopped", func() bool { return holds("drained", "last") == all })
	if err := started["stopped"].Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	within(ttl+time.Second, "the lock is free after a stop", locked)
	time.Sleep(ttl / 4) // it writes, if it can

	drain := func(name string, then func() bool) {
		t.Helper()
		if err := started[name].Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		within(ttl/2, "others have all after the drain of "+name, then)
		if err := started[name].Wait(); err != nil {
			t.Error(name, err)
		}
	}
	drain("drained", func() bool { return holds("stopped", "last") == all })
	drain("last", func() bool { return holds("stopped") == all })
	time.Sleep(100 * time.Millisecond) // it writes
	drain("stopped", func() bool { return holds("killed", "stopped", "drained", "last") == 0 })
	var writers, disorder int
	if err := db.QueryRow(t.Context(), `SELECT count(DISTINCT consumer), count(*) FILTER (WHERE fence < before)
		FROM (SELECT *, lag(fence) OVER (PARTITION BY name ORDER BY id) AS before FROM election_writes
			WHERE name LIKE $1 || '%') AS writes`, run).Scan(&writers, &disorder); err != nil {
		t.Fatal(err)
	}
	if writers < 3 || disorder != 0 { // a leader may have had no turn, but none writes after its successor
		t.Error(writers, "writers, and writes by former leaders:", disorder)
	}
}
