// Package lease lets the processes of an application share work by leases of PostgreSQL's extension eskit_lease.
//
// A process opens one keeper, [Leases]. It keeps a session alive on a connection of its own, and has four verbs:
// [Leases.Lead], [Leases.Join], [Leases.Work] and [Leases.Once]. What they give is a [Scope] with a fence and a
// context. The context is cancelled as soon as the lease, or the trust in it, ends; context.Cause tells why. A process
// that is stopped cannot notice that in time, so each transaction that writes checks its fence: [Scope.Transaction]
// does, and [Scope.Guard] in a transaction of your own.
//
// Trust is counted by Go's monotonic clock. On Linux this clock stands still while the machine is suspended: for a
// moment after that, a context may still look alive. The fence does not depend on any clock of the client.
package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"eskit.dev/lease/internal/core"
)

// State is the state of a keeper.
type State = core.State

// The states. Only while it is trusted may a process begin work.
const (
	Starting = core.Starting
	Trusted  = core.Trusted
	Doubting = core.Doubting
	Lost     = core.Lost
	Draining = core.Draining
	Closed   = core.Closed
)

type settings struct {
	name, watch   string
	ttl, patience time.Duration
	named         bool // by the caller
	takeover      bool
	connect       func(context.Context) (*pgx.Conn, error)
	log           *slog.Logger
	hook          func(State)
}

// Option is a setting of [Open].
type Option func(*settings)

// WithName sets the consumer's name, which views and other consumers' answers show. Default: host, pid, a random
// number.
func WithName(name string) Option { return func(s *settings) { s.name, s.named = name, true } }

// WithTTL sets how long the session lives after a heartbeat. Longer than any pause to survive. Default: 30 s.
func WithTTL(ttl time.Duration) Option { return func(s *settings) { s.ttl = ttl } }

// WithTakeover lets the first session inherit from the last one of the same name, so that a restarted process has its
// leases back at once. Needs [WithName], and no two processes may share the name.
func WithTakeover() Option { return func(s *settings) { s.takeover = true } }

// WithPatience sets how long [Open] tries to get a first session. Default: 30 s.
func WithPatience(limit time.Duration) Option { return func(s *settings) { s.patience = limit } }

// WithConnect makes the keeper's connections by a function, instead of the connection string: for tokens that expire.
func WithConnect(connect func(context.Context) (*pgx.Conn, error)) Option {
	return func(s *settings) { s.connect = connect }
}

// WithWatch names a table of events, whose positions come from position_next. An event that can be read is news for
// [Scope.News], and lets all verbs look again.
func WithWatch(table string) Option { return func(s *settings) { s.watch = table } }

// WithLogger sets where the keeper logs its changes, one line each. Default: slog.Default().
func WithLogger(log *slog.Logger) Option { return func(s *settings) { s.log = log } }

// WithStateHook has a function called with each new state of the keeper, one after the other.
func WithStateHook(hook func(State)) Option { return func(s *settings) { s.hook = hook } }

// Leases is the keeper of one process. It is safe for concurrent use.
type Leases struct {
	settings
	begun    time.Time
	second   second
	life     context.Context // of the calls of the second connection
	endLife  context.CancelFunc
	patient  context.Context // done when what has begun is cancelled
	hurry    context.CancelFunc
	drains   sync.Once
	draining chan struct{}  // closed when no verb may begin any more
	verbs    sync.WaitGroup // that are under way
	closed   chan struct{}
	later    chan func()
	asked    atomic.Value // a channel that is closed at the next ask, and replaced
	told     atomic.Value // the problem that was logged last
	used     sync.Map     // the fences that were handed out, and are not known to be given back, by verb and name
	line     sync.Mutex   // held while there is a connection of the keeper

	mu      sync.Mutex
	core    core.Core
	state   State // that was told last
	timer   *time.Timer
	present *line
	problem error                    // of the last call or connection
	turns   map[string]chan struct{} // of the verbs that are under way; closed at their end
	scopes  map[*Scope]bool
	ending  bool // drains, or closes
}

// Open starts a keeper, and waits until its first session is trusted. If that takes longer than [WithPatience], it
// returns the error of the last try. The connection string is pgx's, a URL or key=value; what it does not say, PG*
// variables do.
func Open(ctx context.Context, dsn string, options ...Option) (*Leases, error) {
	l := newLeases(dsn, options)
	switch {
	case l.takeover && !l.named:
		return nil, errors.New("lease: WithTakeover needs WithName")
	case l.ttl < 100*time.Millisecond:
		return nil, fmt.Errorf("lease: a TTL of %v is too short", l.ttl)
	}
	go l.callLater()
	l.step(func(time.Duration) {})
	ctx, cancel := context.WithTimeout(ctx, l.patience)
	defer cancel()
	err := l.follow(ctx, nil, func(session string, _ <-chan struct{}) (bool, error) {
		if l.watch == "" {
			return true, nil
		}
		_, err := try[core.Answer](l, session, watchCall, session, l.watch)
		if cannotWatch(err) { // of which later heartbeats only warn
			return true, fmt.Errorf("cannot watch %s: %w", l.watch, err)
		}
		return true, context.Cause(ctx) // another failure is the keeper's to mend
	})
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("lease: not opened: %w", errors.Join(l.problem, err))
	}
	return l, nil
}

func newLeases(dsn string, options []Option) *Leases {
	host, _ := os.Hostname()
	l := &Leases{
		settings: settings{ttl: 30 * time.Second, patience: 30 * time.Second, log: slog.Default(), hook: func(State) {},
			name:    fmt.Sprintf("%s-%d-%08x", host, os.Getpid(), rand.Uint32()),
			connect: func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, dsn) }},
		begun: time.Now(), state: Starting, draining: make(chan struct{}),
		closed: make(chan struct{}), later: make(chan func(), 1000), turns: map[string]chan struct{}{},
		scopes: map[*Scope]bool{},
	}
	for _, set := range options {
		set(&l.settings)
	}
	l.life, l.endLife = context.WithCancel(context.Background())
	l.patient, l.hurry = context.WithCancel(context.Background())
	l.core = core.Core{TTL: l.ttl, Takeover: l.takeover, Watches: l.watch != "", Chance: rand.Float64}
	l.timer = time.AfterFunc(core.Never, func() { l.step(func(time.Duration) {}) })
	l.asked.Store(make(chan struct{}))
	l.second.turn = make(chan struct{}, 1)
	l.second.closer = time.AfterFunc(idle, l.second.close)
	return l
}

// Name returns the consumer's name.
func (l *Leases) Name() string { return l.name }

// Logger returns where the keeper logs.
func (l *Leases) Logger() *slog.Logger { return l.log }

// State returns the keeper's state.
func (l *Leases) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.core.State(l.now())
}

// Session returns the uuid of the session, for SQL of your own; "" without one. Keep it private.
func (l *Leases) Session() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.core.Session
}

// Draining is closed when the keeper begins to drain: finish what you have in hand, and release.
func (l *Leases) Draining() <-chan struct{} { return l.draining }

// Drain lets nothing new begin, and waits until what has begun has ended. Once ctx is done it cancels the rest. Then it
// closes the keeper.
func (l *Leases) Drain(ctx context.Context) {
	defer context.AfterFunc(ctx, l.hurry)()
	l.drains.Do(func() { go l.end() })
	<-l.closed
}

// DrainOn drains at the first of these signals, with a time limit for what has begun. The next one has its usual
// effect.
func (l *Leases) DrainOn(limit time.Duration, signals ...os.Signal) {
	caught, stop := signal.NotifyContext(l.life, signals...)
	go func() {
		<-caught.Done()
		stop()
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		l.Drain(ctx)
	}()
}

// Close cancels all scopes, waits for their work, but not longer than half of the TTL, and closes the session, which
// releases what is left. If no connection can be had, the session ends with its TTL. Close returns within a TTL.
func (l *Leases) Close() {
	l.hurry()
	l.Drain(context.Background())
}

// end drains, and closes.
func (l *Leases) end() {
	var session string
	l.step(func(time.Duration) {
		session, l.ending = l.core.Session, true
		close(l.draining)
		l.core.Drain()
		l.do(core.Action{Do: "ask"}) // which wakes the verbs that wait
	})
	ended := make(chan struct{})
	go func() {
		l.verbs.Wait()
		close(ended)
	}()
	if session != "" && l.patient.Err() == nil {
		go l.tell("not drained", session, `SELECT eskit_lease.session_drain($1::uuid)`, session)
	}
	select {
	case <-ended:
	case <-l.patient.Done():
	}
	l.hurry()
	l.mu.Lock()
	l.cancelScopes(ErrClosed)
	l.mu.Unlock()
	time.AfterFunc(9*l.ttl/10, l.endLife)
	select {
	case <-ended:
	case <-time.After(l.ttl / 2):
	}
	if session != "" {
		l.tell("the session was not closed", session, closeCall, session)
	}
	l.endLife()
	l.step(func(time.Duration) { l.core.Close() })
	l.second.close()
	called := make(chan struct{})
	l.afterwards(func() { close(called) })
	select {
	case <-called:
	case <-time.After(100 * time.Millisecond): // a hook may be waiting for this very Close
	}
	go func() { l.later <- nil }()
	close(l.closed)
}
