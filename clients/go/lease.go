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
	line     sync.Mutex // held while there is a connection of the keeper
	blind    bool       // the keeper's connection cannot watch the table of events
	second   second
	life     context.Context // of the calls of the second connection
	endLife  context.CancelFunc
	draining chan struct{} // closed when no verb may begin any more
	idle     chan struct{} // closed when no verb is under way any more
	closed   chan struct{}
	later    chan func()
	called   chan struct{} // closed when all of `later` was called

	mu      sync.Mutex
	core    *core.Core
	state   State // that was told last
	timer   *time.Timer
	present *line
	problem error                    // of the last call or connection
	told    string                   // the problem that was logged last
	asked   chan struct{}            // closed at each ask, and replaced
	turns   map[string]chan struct{} // of the verbs that are under way; closed at their end
	scopes  map[*Scope]bool
	ran     map[string]int64 // the fences of keys whose attempt could not be ended
	ending  bool             // drains, or closes
	closing bool
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
	l.step(l.core.Start)
	ctx, cancel := context.WithTimeout(ctx, l.patience)
	defer cancel()
	if err := l.awaitFirst(ctx); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// awaitFirst waits for the first session. It fails where the table of events cannot be watched, of which later heartbeats
// only warn.
func (l *Leases) awaitFirst(ctx context.Context) error {
	session, _, err := l.ready(ctx)
	if err != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		return fmt.Errorf("lease: no session: %w", errors.Join(l.problem, err))
	}
	if l.watch != "" {
		_, err = query[core.Answer](ctx, l, session, watchCall, session, l.watch)
	}
	if cannotWatch(err) {
		return fmt.Errorf("lease: cannot watch %s: %w", l.watch, err)
	}
	return context.Cause(ctx) // another failure is the keeper's to mend
}

func newLeases(dsn string, options []Option) *Leases {
	host, _ := os.Hostname()
	l := &Leases{
		settings: settings{ttl: 30 * time.Second, patience: 30 * time.Second, log: slog.Default(), hook: func(State) {},
			name:    fmt.Sprintf("%s-%d-%08x", host, os.Getpid(), rand.Uint32()),
			connect: func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, dsn) }},
		begun: time.Now(), second: second{turn: make(chan struct{}, 1)}, state: Starting, asked: make(chan struct{}),
		draining: make(chan struct{}), idle: make(chan struct{}), closed: make(chan struct{}), called: make(chan struct{}),
		later: make(chan func(), 1000), turns: map[string]chan struct{}{}, scopes: map[*Scope]bool{},
		ran: map[string]int64{},
	}
	for _, set := range options {
		set(&l.settings)
	}
	l.life, l.endLife = context.WithCancel(context.Background())
	l.core = core.New(l.ttl, l.takeover, l.watch != "", rand.Float64)
	l.timer = time.AfterFunc(l.ttl, func() { l.step(l.core.Tick) })
	l.second.closer = time.AfterFunc(idle, l.second.hangUp)
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
	if session := l.noMore(); session != "" {
		go func() {
			l.complain("not drained", l.exec(session, `SELECT eskit_lease.session_drain($1::uuid)`, session))
		}()
	}
	for waits := true; waits; {
		select {
		case <-l.idle:
			waits = false
		case <-ctx.Done():
			waits = false
		case <-time.After(l.ttl): // without trust all is cancelled, and what is given back would wait for the server
			waits = l.State() == Draining
		}
	}
	l.Close()
}

// DrainOn drains at the first of these signals, with a time limit for what has begun. The next one has its usual
// effect.
func (l *Leases) DrainOn(limit time.Duration, signals ...os.Signal) {
	caught, stop := signal.NotifyContext(context.Background(), signals...)
	go func() {
		defer stop()
		select {
		case <-l.closed:
		case <-caught.Done():
			stop()
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			defer cancel()
			l.Drain(ctx)
		}
	}()
}

// Close cancels all scopes, waits for their work, but not longer than half of the TTL, and closes the session, which
// releases what is left. If no connection can be had, the session ends with its TTL. Close returns within a TTL.
func (l *Leases) Close() {
	session := l.noMore()
	l.mu.Lock()
	again := l.closing
	l.closing = true
	l.cancelScopes(ErrClosed)
	l.mu.Unlock()
	if again {
		<-l.closed
		return
	}
	time.AfterFunc(l.ttl/2, l.endLife)
	select {
	case <-l.idle:
	case <-l.life.Done():
	}
	if session != "" {
		ctx, cancel := context.WithTimeout(context.Background(), l.ttl/2)
		defer cancel()
		err := l.execIn(ctx, session, `SELECT eskit_lease.session_close($1::uuid)`, session)
		l.complain("the session was not closed", err)
	}
	l.endLife()
	l.step(l.core.Close)
	l.second.hangUp()
	l.mu.Lock()
	close(l.later)
	l.mu.Unlock()
	select {
	case <-l.called:
	case <-time.After(100 * time.Millisecond): // a hook may be waiting for this very Close
	}
	close(l.closed)
}

// noMore lets no verb begin from now on, and wakes those that wait. It returns the session.
func (l *Leases) noMore() (session string) {
	l.step(func(now time.Duration) []core.Action {
		session = l.core.Session
		if l.ending {
			return nil
		}
		l.ending = true
		close(l.draining)
		if len(l.turns) == 0 {
			close(l.idle)
		}
		return append(l.core.Drain(now), core.Action{Kind: core.Ask})
	})
	return session
}

// begin waits until nothing else in this process is under way for a key, as the server would give it the same fence. If
// it would have to wait and must not, `end` is nil.
func (l *Leases) begin(ctx context.Context, key string, wait bool) (end func(), err error) {
	if l == nil || l.core == nil {
		return nil, ErrClosed
	}
	for {
		l.mu.Lock()
		before, ending := l.turns[key], l.ending
		if !ending && before == nil {
			l.turns[key] = make(chan struct{})
		}
		l.mu.Unlock()
		switch {
		case ending:
			return nil, ErrClosed
		case before == nil:
			return func() { l.finish(key) }, nil
		case !wait:
			return nil, nil
		}
		select {
		case <-before:
		case <-l.draining:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (l *Leases) finish(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.turns[key])
	delete(l.turns, key)
	if l.ending && len(l.turns) == 0 {
		close(l.idle)
	}
}

// ready waits until the session is trusted. It returns the session, and a channel that is closed at the next ask: as it
// is taken before the caller's question, no news is missed in between.
func (l *Leases) ready(ctx context.Context) (session string, asked <-chan struct{}, err error) {
	for {
		l.mu.Lock()
		session, asked = l.core.Session, l.asked
		state, ending := l.core.State(l.now()), l.ending
		l.mu.Unlock()
		switch {
		case ending:
			return "", nil, ErrClosed
		case ctx.Err() != nil:
			return "", nil, context.Cause(ctx)
		case state == Trusted:
			return session, asked, nil
		}
		select {
		case <-asked:
		case <-ctx.Done():
		}
	}
}

// crew is the user's functions of a call of Join or Work that run.
type crew struct {
	mu      sync.Mutex
	working sync.WaitGroup
}

// begin counts a function, unless ctx is done.
func (c *crew) begin(ctx context.Context) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ctx.Err() != nil {
		return false
	}
	c.working.Add(1)
	return true
}

// attend returns once loop has ended, or ctx is done, and all of the crew have ended. Then it waits for giveBack, but
// no longer than a TTL: the loop may wait for a server that is away, and goes on in the background, as giveBack does.
func (l *Leases) attend(ctx context.Context, crew *crew, loop func() error, giveBack func()) error {
	ended, over := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(over)
		ended <- loop()
		giveBack()
	}()
	var err error
	select {
	case err = <-ended:
	case <-ctx.Done():
		err = context.Cause(ctx)
		crew.mu.Lock() // nothing is counted after this
		crew.mu.Unlock()
	}
	crew.working.Wait()
	select {
	case <-over:
	case <-time.After(l.ttl):
	}
	return err
}

var errAgain = errors.New("again, after a pause")

// tend calls `look` for a session again and again: at each ask, when a task has ended, and soon after a failure that
// may pass. It returns when ctx is done, when the keeper drains (nil), or with an error that stays.
func (l *Leases) tend(ctx context.Context, ended <-chan func(),
	look func(session string, asked <-chan struct{}) error) error {
	for {
		session, asked, err := l.ready(ctx)
		if errors.Is(err, ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		var again <-chan time.Time
		switch err = look(session, asked); {
		case err == nil, errors.Is(err, ErrLost): // the next session asks
		case !answered(err), isBrief(err), sqlstate(err) == "55000": // drains, is no member, or has found no slot
			again = time.After(min(time.Second, l.ttl/6))
		case err == errAgain:
			again = time.After(time.Second)
		default:
			return err
		}
		select {
		case <-asked:
		case <-again:
		case end := <-ended:
			end()
		case <-ctx.Done():
		}
	}
}
