// Kit does what the conformance kit tells it, and tells what happens: JSON lines in, JSON lines out.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"eskit.dev/lease"
)

type command struct {
	Do, ID, DSN, Work, Name, Group, Queue, Key, Case string
	Pool, Concurrency                                int
	TTL, Every, Seconds                              float64
	Takeover, Fail                                   bool
}

type event map[string]any

// program has one keeper, and the application's own pool.
type program struct {
	mu     sync.Mutex // of the output and of stops
	stops  map[string]context.CancelFunc
	name   string
	leases *lease.Leases
	pool   *pgxpool.Pool
	open   chan struct{} // closed once it is open
	dsn    string
}

// monotonic returns the clock that all processes of the machine share.
func monotonic() float64 {
	var now syscall.Timespec
	const clockMonotonic = 1
	_, _, _ = syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&now)), 0)
	return float64(now.Nano()) / 1e9
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func (p *program) tell(c command, name string, more event) {
	told := event{"event": name, "at": monotonic()}
	if c.ID != "" {
		told["id"] = c.ID
	}
	for key, value := range more {
		told[key] = value
	}
	line, err := json.Marshal(told)
	if err != nil {
		panic(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = os.Stdout.Write(append(line, '\n'))
}

func (p *program) do(c command) {
	if c.Do != "open" && c.Do != "misuse" && c.Do != "stop" {
		<-p.open
	}
	switch c.Do {
	case "open":
		p.start(c)
	case "lead":
		p.verb(c, p.lead)
	case "join":
		p.verb(c, p.join)
	case "work":
		p.verb(c, p.work)
	case "once":
		p.verb(c, p.once)
	case "stop":
		p.mu.Lock()
		stop := p.stops[c.ID]
		p.mu.Unlock()
		if stop != nil {
			stop() // the verb tells that it has stopped
		} else {
			p.tell(c, "stopped", nil)
		}
	case "hold":
		p.hold(c)
	case "state":
		p.tell(c, "state", event{"state": p.leases.State(), "session": p.leases.Session()})
	case "drain":
		p.drain(seconds(c.Seconds))
		p.tell(c, "drained", nil)
	case "close":
		p.leases.Close()
		p.tell(c, "closed", nil)
	case "misuse":
		p.misuse(c)
	default:
		p.tell(c, "error", event{"error": "no such command: " + c.Do})
	}
}

func (p *program) start(c command) {
	ctx := context.Background()
	if c.Pool == 0 {
		c.Pool = 4
	}
	if c.Work == "" {
		c.Work = c.DSN
	}
	p.name, p.dsn = c.Name, c.DSN
	config, err := pgxpool.ParseConfig(c.Work)
	if err != nil {
		p.tell(c, "error", event{"error": err.Error()})
		return
	}
	config.MaxConns = int32(c.Pool)
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // for a pooler
	if p.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		p.tell(c, "error", event{"error": err.Error()})
		return
	}
	options := []lease.Option{lease.WithStateHook(func(s lease.State) { p.tell(command{}, "keeper", event{"state": s}) })}
	if c.Name != "" {
		options = append(options, lease.WithName(c.Name))
	}
	if c.TTL != 0 {
		options = append(options, lease.WithTTL(seconds(c.TTL)))
	}
	if c.Takeover {
		options = append(options, lease.WithTakeover())
	}
	leases, err := lease.Open(ctx, c.DSN, options...)
	if err != nil {
		p.tell(c, "error", event{"error": err.Error()})
		return
	}
	p.leases = leases
	close(p.open)
	p.tell(c, "opened", event{"session": leases.Session()})
}

// verb runs a verb until it is stopped, or the keeper drains.
func (p *program) verb(c command, run func(context.Context, command) error) {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	p.mu.Lock()
	p.stops[c.ID] = stop
	p.mu.Unlock()
	err := run(ctx, c)
	p.mu.Lock()
	delete(p.stops, c.ID) // before it tells, as the next verb may have the same id
	p.mu.Unlock()
	if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, lease.ErrClosed) {
		p.tell(c, "error", event{"error": err.Error()})
	}
	if ctx.Err() != nil {
		p.tell(c, "stopped", nil)
	}
}

// kind names what became of a transaction.
func kind(err error, good string) string {
	switch {
	case err == nil:
		return good
	case errors.Is(err, lease.ErrLost):
		return "lost"
	case errors.Is(err, lease.ErrRefused):
		return "refused"
	case errors.Is(err, lease.ErrUnsure):
		return "unsure"
	}
	return "error"
}

func (p *program) result(c command, err error, good string, more event) {
	told := event{}
	for key, value := range more {
		told[key] = value
	}
	if err != nil {
		told["error"] = err.Error()
	}
	p.tell(c, kind(err, good), told)
}

func pause(ctx context.Context, every float64) {
	if every == 0 {
		every = 0.01
	}
	select {
	case <-time.After(seconds(every)):
	case <-ctx.Done():
	}
}

func (p *program) lead(ctx context.Context, c command) error {
	for {
		scope, lead, err := p.leases.Lead(ctx, c.Name)
		if err != nil {
			return err
		}
		fence := event{"fence": lead.Fence()}
		p.tell(c, "granted", fence)
		told := make(chan struct{})
		context.AfterFunc(scope, func() {
			p.tell(c, "cancelled", fence)
			close(told)
		})
		for scope.Err() == nil && !p.drains() {
			p.tell(c, "begin", fence)
			err := lead.Transaction(scope, p.pool, func(tx pgx.Tx) error {
				_, err := tx.Exec(scope, `INSERT INTO kit_writes (consumer, name, fence) VALUES ($1::text, $2::text, $3::bigint)`,
					p.name, c.Name, lead.Fence())
				return err
			})
			p.result(c, err, "wrote", fence)
			pause(scope, c.Every)
		}
		lead.Release()
		<-told
		p.tell(c, "ended", fence)
	}
}

func (p *program) drains() bool {
	select {
	case <-p.leases.Draining():
		return true
	default:
		return false
	}
}

func (p *program) join(ctx context.Context, c command) error {
	return p.leases.Join(ctx, c.Group, func(ctx context.Context, part *lease.Partition) error {
		about := event{"partition": part.Number, "fence": part.Fence()}
		p.tell(c, "started", about)
		told := make(chan struct{})
		stop := context.AfterFunc(ctx, func() {
			p.tell(c, "cancelled", about)
			close(told)
		})
		defer func() {
			if !stop() {
				<-told
			}
			p.tell(c, "ended", about)
		}()
		for ctx.Err() == nil {
			p.tell(c, "begin", about)
			err := p.apply(ctx, part)
			p.result(c, err, "applied", about)
			if errors.Is(err, lease.ErrRefused) || errors.Is(err, lease.ErrUnsure) {
				return err
			}
			pause(ctx, c.Every)
		}
		return ctx.Err()
	})
}

// apply applies the next events of a partition.
func (p *program) apply(ctx context.Context, part *lease.Partition) error {
	return part.Transaction(ctx, p.pool, func(tx pgx.Tx) error {
		position, err := part.Position(ctx, tx)
		if err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `SELECT position FROM kit_events WHERE part = $1::int AND position > $2::bigint
			ORDER BY position LIMIT 5`, part.Number, position)
		if err != nil {
			return err
		}
		events, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil || len(events) == 0 {
			return err
		}
		if moved, err := part.Commit(ctx, tx, events[len(events)-1], position); err != nil || !moved {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO kit_applied (part, position, fence, consumer)
			SELECT $1::int, position, $2::bigint, $3::text FROM unnest($4::bigint[]) AS position`,
			part.Number, part.Fence(), p.name, events)
		return err
	})
}

func (p *program) work(ctx context.Context, c command) error {
	handle := func(ctx context.Context, tx pgx.Tx, item lease.Item) error {
		var payload struct{ Fail, Seconds float64 }
		if err := item.Decode(&payload); err != nil {
			return err
		}
		about := event{"item": item.ID}
		if float64(item.Attempt) <= payload.Fail {
			p.tell(c, "failed", about)
			return fmt.Errorf("attempt %d was to fail", item.Attempt)
		}
		if payload.Seconds > 0 {
			pause(ctx, payload.Seconds)
		}
		_, err := tx.Exec(ctx, `INSERT INTO kit_done (item, consumer) VALUES ($1::bigint, $2::text)`, item.ID, p.name)
		if err == nil {
			p.tell(c, "handled", about)
		}
		return err
	}
	return p.leases.Work(ctx, c.Queue, max(c.Concurrency, 1), p.pool, handle)
}

func (p *program) once(ctx context.Context, c command) error {
	outcome, err := p.leases.Once(ctx, c.Key, func(ctx context.Context, _ int64) (any, error) {
		_, err := p.pool.Exec(ctx, `INSERT INTO kit_once (key, consumer) VALUES ($1::text, $2::text)`, c.Key, p.name)
		if err != nil {
			return nil, err
		}
		if c.Seconds > 0 {
			pause(ctx, c.Seconds)
		}
		if c.Fail {
			return nil, errors.New("was to fail")
		}
		return event{"by": p.name}, nil
	})
	if outcome.State == "" {
		return err
	}
	p.tell(c, "once", event{"first": outcome.First, "state": outcome.State, "result": outcome.Result})
	return nil
}

func (p *program) hold(c command) {
	ctx := context.Background()
	var held []*pgxpool.Conn
	for range p.pool.Config().MaxConns {
		if conn, err := p.pool.Acquire(ctx); err == nil {
			held = append(held, conn)
		}
	}
	p.tell(c, "held", nil)
	time.Sleep(seconds(c.Seconds))
	for _, conn := range held {
		conn.Release()
	}
	p.tell(c, "free", nil)
}

func (p *program) drain(limit time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	p.leases.Drain(ctx)
}

// misuse does what no caller should, and tells the error.
func (p *program) misuse(c command) {
	if c.Case != "before_open" {
		<-p.open
	}
	var name any
	if err := p.misused(c.Case); err != nil {
		name = errorName(err)
	}
	p.tell(c, "misused", event{"case": c.Case, "error": name})
}

// errorName names an error as users of the library know it.
func errorName(err error) string {
	for name, known := range map[string]error{"ErrLost": lease.ErrLost, "ErrRefused": lease.ErrRefused,
		"ErrUnsure": lease.ErrUnsure, "ErrClosed": lease.ErrClosed, "ErrNoTransaction": lease.ErrNoTransaction} {
		if errors.Is(err, known) {
			return name
		}
	}
	return strings.TrimPrefix(fmt.Sprintf("%T", err), "*")
}

func (p *program) misused(what string) error {
	ctx := context.Background()
	lead := func() (*lease.Lead, error) {
		_, lead, err := p.leases.Lead(ctx, "misuse-"+p.name)
		return lead, err
	}
	switch what {
	case "before_open":
		var unopened *lease.Leases
		_, _, err := unopened.Lead(ctx, "misuse")
		return err
	case "open_twice": // each Open makes a keeper of its own
		other, err := lease.Open(ctx, p.dsn)
		if err == nil {
			other.Close()
		}
		return err
	case "after_close":
		other, err := lease.Open(ctx, p.dsn)
		if err != nil {
			return err
		}
		other.Close()
		_, _, err = other.Lead(ctx, "misuse")
		return err
	case "no_transaction", "ended_scope":
		held, err := lead()
		if err != nil {
			return err
		}
		defer held.Release()
		tx, err := p.pool.Begin(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback(ctx) }()
		if what == "ended_scope" {
			held.Release()
		} else if _, err := tx.Exec(ctx, "COMMIT"); err != nil {
			return err
		}
		return held.Guard(ctx, tx)
	case "two_threads":
		failed := make(chan error, 2)
		for range 2 {
			go func() {
				held, err := lead()
				if err == nil {
					held.Release()
				}
				failed <- err
			}()
		}
		return errors.Join(<-failed, <-failed)
	}
	return fmt.Errorf("no such case: %s", what)
}

func main() {
	p := &program{stops: map[string]context.CancelFunc{}, open: make(chan struct{})}
	over := make(chan os.Signal, 1)
	signal.Notify(over, syscall.SIGTERM, os.Interrupt)
	go func() {
		lines := bufio.NewScanner(os.Stdin)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var c command
			if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
				p.tell(c, "error", event{"error": err.Error()})
				continue
			}
			go p.do(c)
		}
		over <- syscall.SIGTERM
	}()
	<-over
	select {
	case <-p.open:
		p.drain(10 * time.Second)
		p.tell(command{}, "drained", nil)
	default:
	}
}
