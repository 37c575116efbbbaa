// Package election elects leaders by leases, in the shape of Kubernetes' client-go: callbacks for the one process that
// leads, or locks by name.
package election

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"eskit.dev/lease"
)

// Callbacks are told what becomes of the leadership.
type Callbacks struct {
	// OnStartedLeading is the work of the leader. Its context is cancelled when the leadership ends. The lease is
	// released once it has returned. To return earlier ends no leadership, except while the keeper drains.
	OnStartedLeading func(ctx context.Context, lead *lease.Lead)
	// OnStoppedLeading is called once in each Run, even if this process never led, and by RunForever each time it has
	// led. It does not wait for OnStartedLeading to return: to end the process here is a way to stop work that heeds no
	// context.
	OnStoppedLeading func()
	// OnNewLeader is called with the name of each new leader, also with this process's own. May be nil.
	OnNewLeader func(name string)
}

// Config is what an [Elector] needs.
type Config struct {
	Leases    *lease.Leases
	Name      string // of the lease
	Callbacks Callbacks
	// DB is asked who leads while another process does, by a role with grant_monitor. Without it OnNewLeader and
	// GetLeader know of this process only.
	DB interface {
		QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	}
	// RetryPeriod is the time between these questions. Default: 2 s.
	RetryPeriod time.Duration
}

// Elector takes part in one election.
type Elector struct {
	Config
	mu     sync.Mutex
	leader string
	lead   *lease.Lead // while this process leads
}

// New returns an elector, or what its config lacks.
func New(config Config) (*Elector, error) {
	switch {
	case config.Leases == nil:
		return nil, errors.New("election: Leases must not be nil")
	case config.Name == "":
		return nil, errors.New("election: Name must not be empty")
	case config.Callbacks.OnStartedLeading == nil:
		return nil, errors.New("election: OnStartedLeading must not be nil")
	case config.Callbacks.OnStoppedLeading == nil:
		return nil, errors.New("election: OnStoppedLeading must not be nil")
	case config.RetryPeriod < 0:
		return nil, errors.New("election: RetryPeriod must not be negative")
	case config.RetryPeriod == 0:
		config.RetryPeriod = 2 * time.Second
	}
	return &Elector{Config: config}, nil
}

// Run waits for leadership, leads, and returns when the leadership, and the work, has ended; or when ctx is done. Call
// it again to take part again.
func (e *Elector) Run(ctx context.Context) error {
	led, err := e.run(ctx)
	if !led {
		e.Callbacks.OnStoppedLeading()
	}
	return err
}

func (e *Elector) run(ctx context.Context) (led bool, err error) {
	leading, lead, err := e.win(ctx)
	if err != nil {
		return false, err
	}
	defer lead.Release()
	e.learn(e.Leases.Name(), lead)
	worked := make(chan struct{})
	go func() {
		defer close(worked)
		e.Callbacks.OnStartedLeading(leading, lead)
	}()
	err = e.stopped(leading, worked)
	e.learn("", nil)
	e.Callbacks.OnStoppedLeading()
	<-worked
	return true, err
}

// win waits for leadership, and watches who leads meanwhile.
func (e *Elector) win(ctx context.Context) (context.Context, *lease.Lead, error) {
	watching, stop := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		e.watch(watching)
	}()
	defer func() {
		stop()
		<-watched
	}()
	return e.Leases.Lead(ctx, e.Name)
}

// stopped waits until the leadership has ended, or the work has while the keeper drains. It returns why.
func (e *Elector) stopped(leading context.Context, worked <-chan struct{}) error {
	select {
	case <-leading.Done():
	case <-worked:
		select {
		case <-leading.Done():
		case <-e.Leases.Draining():
			return lease.ErrClosed
		}
	}
	return context.Cause(leading)
}

// RunForever takes part again and again, until ctx is done or the keeper is closed, or with an error of the server that
// stays: a name that it does not take, a right that is lacking. After another one it waits for RetryPeriod.
func (e *Elector) RunForever(ctx context.Context) error {
	said := ""
	for {
		led, err := e.run(ctx)
		if ctx.Err() != nil || errors.Is(err, lease.ErrClosed) || !led && stays(err) {
			return err
		}
		if !led {
			if said != err.Error() {
				said = err.Error()
				e.Leases.Logger().Warn("eskit_lease: asks for the leadership again", "name", e.Name, "error", err)
			}
			select {
			case <-time.After(e.RetryPeriod):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
}

// stays tells whether the server refuses the call itself (classes 22 and 42).
func stays(err error) bool {
	var told interface{ SQLState() string }
	return errors.As(err, &told) && (strings.HasPrefix(told.SQLState(), "22") || strings.HasPrefix(told.SQLState(), "42"))
}

// GetLeader returns the name of the leader that was seen last; "" if none is known.
func (e *Elector) GetLeader() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.leader
}

// IsLeader tells whether this process leads.
func (e *Elector) IsLeader() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.lead != nil && e.lead.Trusted()
}

// watch asks for the leader until ctx is done.
func (e *Elector) watch(ctx context.Context) {
	for e.DB != nil && ctx.Err() == nil {
		var leader string
		err := e.DB.QueryRow(ctx, `SELECT consumer FROM eskit_lease.leases
			WHERE resource = $1::text AND state = 'held'`, e.Name).Scan(&leader)
		if err == nil && ctx.Err() == nil {
			e.learn(leader, nil)
		}
		select {
		case <-time.After(e.RetryPeriod):
		case <-ctx.Done():
		}
	}
}

// learn notes who leads, and tells of a new leader.
func (e *Elector) learn(leader string, lead *lease.Lead) {
	e.mu.Lock()
	isNew := e.leader != leader
	e.leader, e.lead = leader, lead
	e.mu.Unlock()
	if isNew && leader != "" && e.Callbacks.OnNewLeader != nil {
		e.Callbacks.OnNewLeader(leader)
	}
}

// Locks are locks by name that all processes share.
type Locks struct{ Leases *lease.Leases }

// Acquire waits for a lock. The caller must call release. Within a process, two acquisitions of one lock follow one
// another.
func (l Locks) Acquire(ctx context.Context, id string) (release func(), err error) {
	// The lock is to outlive the context, which limits the wait.
	waiting, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	limit := context.AfterFunc(ctx, func() { stop(context.Cause(ctx)) })
	_, lead, err := l.Leases.Lead(waiting, id)
	if err == nil && !limit() { // the limit came first
		lead.Release()
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	return func() {
		lead.Release()
		stop(nil)
	}, nil
}

// TryAcquire takes a lock if it is free.
func (l Locks) TryAcquire(id string) (release func(), ok bool) {
	_, lead, err := l.Leases.TryLead(context.Background(), id)
	if err != nil || lead == nil {
		return nil, false
	}
	return lead.Release, true
}
