// Elections takes part in the election of one system, and tells by JSON lines when it leads. SIGTERM ends it politely.
//
//	elections migrate              makes the tables of River
//	elections SYSTEM NAME TTL      eskit_lease or river; the TTL in seconds is for eskit_lease, 0 is its default
//	elections SYSTEM NAME TTL write    also writes, while it leads
//	elections eskit_lease NAME TTL N   also leads N topics
//
// The server is that of the PG* variables.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/riverqueue/river/rivertype"
	"golang.org/x/sys/unix"

	"eskit.dev/lease"
)

const (
	tick  = 10 * time.Millisecond
	topic = "elections"
)

// tell writes an event, with the time of the clock that all processes of the machine share.
func tell(event string) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err)
	}
	_ = json.NewEncoder(os.Stdout).Encode(map[string]any{"event": event, "at": float64(now.Nano()) / 1e9})
}

// eskit leads by the library for Go.
func eskit(ctx context.Context, db *pgxpool.Pool, name string, ttl time.Duration, what string) error {
	options := []lease.Option{lease.WithName(name), lease.WithLogger(slog.New(slog.DiscardHandler))}
	if ttl > 0 {
		options = append(options, lease.WithTTL(ttl))
	}
	leases, err := lease.Open(context.WithoutCancel(ctx), "", options...)
	if err != nil {
		return err
	}
	defer leases.Close()
	tell("begun")
	for ctx.Err() == nil {
		leading, lead, err := leases.Lead(ctx, topic)
		if err != nil {
			return err
		}
		tell("leads")
		if topics, _ := strconv.Atoi(what); topics > 0 {
			if err := hold(leading, db, leases.Session(), topics); err != nil {
				return err
			}
			tell("holds")
		}
		if what == "write" {
			write(ctx, db, lead, name)
		}
		<-leading.Done()
		lead.Release()
	}
	return nil
}

// hold has the session of the keeper lead topics, too.
func hold(ctx context.Context, db *pgxpool.Pool, session string, topics int) error {
	_, err := db.Exec(ctx, `SELECT count(*) FROM eskit_lease.lease_acquire_many(
		ARRAY(SELECT 'topic-' || n FROM generate_series(1, $2::int) AS n), $1::uuid)`, session, topics)
	return err
}

// write writes without a guard for as long as the lead's context says that it leads, and under guard even longer: until
// the server refuses it, or ctx ends.
func write(ctx context.Context, db *pgxpool.Pool, lead *lease.Lead, name string) {
	const insert = `INSERT INTO elections_writes (leader, guarded) VALUES ($1, $2)`
	for refused := false; !refused && ctx.Err() == nil; time.Sleep(tick) {
		if lead.Trusted() {
			_, _ = db.Exec(ctx, insert, name, false)
		}
		refused = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
			var checked int
			const check = `SELECT 1 FROM eskit_lease.fence_check($1, $2)`
			if err := tx.QueryRow(ctx, check, lead.Name(), lead.Fence()).Scan(&checked); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, insert, name, true)
			return err
		}) != nil
	}
}

// by is a periodic job, which River's leader inserts.
type by struct {
	Leader string `json:"leader"`
}

func (by) Kind() string { return "by" }

type worker struct{ river.WorkerDefaults[by] }

func (worker) Work(context.Context, *river.Job[by]) error { return nil }

// byRiver takes part with a client of River, all of whose settings are its defaults.
func byRiver(ctx context.Context, db *pgxpool.Pool, name string, writes bool) error {
	workers := river.NewWorkers()
	river.AddWorker(workers, &worker{})
	config := &river.Config{
		ID: name, Workers: workers, Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 1}},
		Hooks: []rivertype.Hook{
			river.HookPeriodicJobsStartFunc(func(context.Context, *rivertype.HookPeriodicJobsStartParams) error {
				tell("leads")
				return nil
			}),
		},
		Logger: slog.New(slog.DiscardHandler),
	}
	if writes {
		constructor := func() (river.JobArgs, *river.InsertOpts) { return by{name}, nil }
		config.PeriodicJobs = append(config.PeriodicJobs,
			river.NewPeriodicJob(river.PeriodicInterval(time.Second), constructor, nil))
	}
	client, err := river.NewClient(riverpgxv5.New(db), config)
	if err != nil {
		return err
	}
	if err := client.Start(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	tell("begun")
	<-ctx.Done()
	return client.Stop(context.WithoutCancel(ctx))
}

func migrate(ctx context.Context, db *pgxpool.Pool) error {
	migrator, err := rivermigrate.New(riverpgxv5.New(db), nil)
	if err == nil {
		_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	}
	return err
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	db, err := pgxpool.New(context.WithoutCancel(ctx), "")
	if err != nil {
		return err
	}
	args := append(os.Args[1:], "", "", "", "")
	ttl, _ := strconv.Atoi(args[2])
	switch args[0] {
	case "migrate":
		return migrate(ctx, db)
	case "river":
		return byRiver(ctx, db, args[1], args[3] == "write")
	case "eskit_lease":
		return eskit(ctx, db, args[1], time.Duration(ttl)*time.Second, args[3])
	}
	return fmt.Errorf("no such system: %s", args[0])
}

func main() {
	if err := run(); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
