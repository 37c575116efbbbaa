package lease

import (
	"context"
	"errors"
	"sync"
	"time"
)

// verb runs a verb in the background, once nothing else in this process is under way for its key, as the server would
// give that the same fence. If it would have to wait and must not, the turn is nil. The turn is closed when run has
// ended.
func (l *Leases) verb(ctx context.Context, key string, wait bool, run func()) (turn <-chan struct{}, err error) {
	if l == nil || l.turns == nil {
		return nil, ErrClosed
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for before := l.turns[key]; before != nil && !l.ending; before = l.turns[key] {
		if !wait || ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		l.mu.Unlock()
		select {
		case <-before:
		case <-l.draining:
		case <-ctx.Done():
		}
		l.mu.Lock()
	}
	if l.ending {
		return nil, ErrClosed
	}
	over := make(chan struct{})
	l.turns[key] = over
	l.verbs.Go(func() {
		run()
		l.mu.Lock()
		defer l.mu.Unlock()
		close(over)
		delete(l.turns, key)
	})
	return over, nil
}

// look is what a verb does for a session that is trusted: it asks the server what has changed. asked is closed at the
// next ask of the keeper: as it is taken before the question, no news is missed in between. A look that is done ends
// the verb's loop; else an error passes.
type look func(session string, asked <-chan struct{}) (done bool, err error)

var errAgain = errors.New("again, after a pause")

// follow looks at once, at each ask, when a task has ended, and soon after an error that passes. It returns the error
// of the look that is done; or why it ends before that, which is [ErrClosed] when the keeper drains.
func (l *Leases) follow(ctx context.Context, ended <-chan func(), look look) error {
	for {
		asked := l.nextAsk()
		l.mu.Lock()
		session, state, ending := l.core.Session, l.core.State(l.now()), l.ending
		l.mu.Unlock()
		var again <-chan time.Time
		switch {
		case ending:
			return ErrClosed
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case state == Trusted:
			done, err := look(session, asked)
			if done {
				return err
			}
			if err != nil {
				again = time.After(time.Second)
			}
			if err != errAgain && ctx.Err() == nil {
				l.warn("asks again", err)
			}
		default: // trust may come back without an ask
			again = time.After(time.Second)
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

// stays tells whether an error of a call is the caller's. 55000: the session drains, is no member, or has found no
// slot.
func stays(err error) bool {
	return answered(err) && !isBrief(err) && !errors.Is(err, ErrLost) && sqlstate(err) != "55000"
}

// crew is a call of Join or Work, whose tasks run the user's function.
type crew struct {
	*Leases
	ctx      context.Context // done when the call ends
	starting sync.Mutex
	working  sync.WaitGroup // the user's functions
	ended    chan func()    // what the loop does when a task has ended
}

// attend follows the keeper until ctx is done, and then has leave wait for the tasks and give back. It returns once the
// user's functions have ended; and all else, but for that it waits no longer than a TTL: the server may be away.
func (c *crew) attend(ctx context.Context, key string, look look, leave func()) error {
	ctx, stop := context.WithCancelCause(ctx)
	c.ctx, c.ended = ctx, make(chan func())
	turn, err := c.verb(ctx, key, true, func() {
		stop(c.follow(ctx, c.ended, look))
		leave()
	})
	if err != nil {
		stop(nil)
		return err
	}
	<-ctx.Done()
	c.starting.Lock() // no function starts after this
	c.working.Wait()
	c.starting.Unlock()
	c.isOver(ctx, turn)
	if err = context.Cause(ctx); errors.Is(err, ErrClosed) {
		return nil
	}
	return err
}

// start begins the scope of a user's function, for which attend then waits. Once ctx, or the context of the crew, is
// done the function must not begin.
func (c *crew) start(ctx context.Context, resource string, fence int64, session string) (*Scope, error) {
	c.starting.Lock()
	defer c.starting.Unlock()
	s, err := c.newScope(ctx, resource, fence, session)
	if err == nil {
		c.working.Add(1)
	}
	return s, err
}

// isOver waits for the end of a turn, but once ctx is done for no longer than a TTL.
func (l *Leases) isOver(ctx context.Context, turn <-chan struct{}) bool {
	select {
	case <-turn:
		return true
	case <-ctx.Done():
	}
	select {
	case <-turn:
		return true
	case <-time.After(l.ttl):
		return false
	}
}
