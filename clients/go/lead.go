package lease

import (
	"context"
	"errors"
	"time"

	"eskit.dev/lease/internal/core"
)

// Lead is the [Scope] of a leader. Release it when its work has ended.
type Lead struct {
	*Scope
	endWork  context.CancelFunc
	released chan struct{}
}

// Lead waits for leadership. The context that it returns is cancelled when the leadership ends, and context.Cause tells
// why. If ctx ends while Lead waits, the place in line is given up. Two leads of one name in a process follow one
// another.
//
//	ctx, lead, err := leases.Lead(ctx, "sub:orders")
//	if err != nil {
//		return err
//	}
//	defer lead.Release()
func (l *Leases) Lead(ctx context.Context, name string) (context.Context, *Lead, error) {
	return l.lead(ctx, name, true)
}

// TryLead leads at once, or not at all: then the lead is nil, and so is the error.
func (l *Leases) TryLead(ctx context.Context, name string) (context.Context, *Lead, error) {
	return l.lead(ctx, name, false)
}

// Release ends the scope, and releases the lease to the first in line. It waits for fenced transactions that are open:
// end yours before. After a TTL Release returns in any case, and the release goes on.
func (d *Lead) Release() {
	if d == nil { // of a TryLead
		return
	}
	d.cancel(nil)
	d.endWork()
	select {
	case <-d.released:
	case <-time.After(d.leases.ttl):
	}
}

func (l *Leases) lead(ctx context.Context, name string, wait bool) (context.Context, *Lead, error) {
	var lead *Lead
	var err error
	done, gone := make(chan struct{}), ctx.Done()
	if !wait && l != nil && l.core != nil { // it does not wait for a server that is away, either
		if asking, err := l.newScope(ctx, name, 0, l.Session()); err == nil {
			defer asking.cancel(nil)
			gone = asking.ctx.Done()
		}
	}
	go func() {
		defer close(done)
		lead, err = l.compete(ctx, name, wait)
	}()
	select {
	case <-done:
	case <-gone: // a call that is under way must end before the place is given up
		go func() {
			<-done
			lead.Release()
		}()
		return ctx, nil, context.Cause(ctx)
	}
	if lead == nil {
		return ctx, nil, err
	}
	return lead.ctx, lead, nil
}

// compete waits for its turn and for the grant, and sees to the lead until it is released.
func (l *Leases) compete(ctx context.Context, name string, wait bool) (*Lead, error) {
	end, err := l.begin(ctx, "lead "+name, wait)
	if end == nil {
		return nil, err
	}
	scope, asked, err := l.win(ctx, name, wait)
	if scope == nil {
		defer end()
		if wait {
			l.giveUp(name, err)
		}
		return nil, err
	}
	worked, endWork := context.WithCancel(context.Background())
	lead := &Lead{scope, endWork, make(chan struct{})}
	go func() {
		defer end()
		defer close(lead.released)
		scope.watch(asked)
		<-worked.Done()
		l.release(name, scope.session, scope.fence)
	}()
	return lead, nil
}

// win asks for the lease until it is granted. Without `wait` it asks once, and the scope may be nil without an error.
func (l *Leases) win(ctx context.Context, name string, wait bool) (*Scope, <-chan struct{}, error) {
	for wait || l.State() == Trusted {
		session, asked, err := l.ready(ctx)
		if err != nil {
			return nil, nil, err
		}
		got, err := l.acquire(name, session, wait)
		if err != nil && !errors.Is(err, ErrLost) {
			return nil, nil, err
		}
		if got.Granted {
			if scope, err := l.newScope(ctx, name, got.Fence, session); err == nil {
				return scope, asked, nil
			}
			l.release(name, session, got.Fence) // the trust has ended
		}
		if !wait {
			break
		}
		var again <-chan time.Time
		if got.Reason != "queued" { // it has no place in line
			again = time.After(time.Second)
		}
		select {
		case <-asked:
		case <-again:
		case <-ctx.Done():
		}
	}
	return nil, nil, context.Cause(ctx)
}

type grant struct {
	Granted bool
	Fence   int64 // 0 without one
	Trust   time.Duration
	Reason  string
}

func (l *Leases) acquire(name, session string, wait bool) (grant, error) {
	sent := l.now()
	rows, err := query[grant](l.life, l, session, `SELECT granted, coalesce(fence, 0),
			coalesce(trust_ms, 0) * interval '1 ms', reason
		FROM eskit_lease.lease_acquire($1::text, $2::uuid, queue => $3::boolean)`, name, session, wait)
	if err != nil {
		return grant{}, err
	}
	got := rows[0]
	if ended := got.Reason == "expired" || got.Reason == "unknown_session"; ended || got.Granted { // others tell no trust
		l.heard(session, sent, core.Answer{Alive: !ended, Trust: got.Trust})
	}
	return got, nil
}

// watch asks again at each ask, until the scope has ended.
func (s *Scope) watch(asked <-chan struct{}) {
	l := s.leases
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-asked:
		}
		l.mu.Lock()
		asked = l.asked
		l.mu.Unlock()
		got, err := l.acquire(s.resource, s.session, false)
		if err == nil && got.Fence != s.fence {
			err = errors.New("the server answers: " + got.Reason)
		}
		if err != nil {
			s.end(err)
		}
		if got.Granted && got.Fence != s.fence {
			l.release(s.resource, s.session, got.Fence)
		}
	}
}

func (l *Leases) release(name, session string, fence int64) {
	err := l.exec(session, `SELECT eskit_lease.lease_release($1::text, $2::bigint)`, name, fence)
	l.complain("a lease was not released", err)
}

// giveUp leaves the line for a reason, and releases what was granted before that.
func (l *Leases) giveUp(name string, why error) {
	session := l.Session()
	if session == "" {
		return // none has a place
	}
	err := l.exec(session, `SELECT eskit_lease.lease_cancel($1::text, $2::uuid)`, name, session)
	if err == nil {
		err = l.exec(session, `SELECT eskit_lease.lease_release_many(ARRAY[$1::text], $2::uuid)`, name, session)
	}
	if code := sqlstate(err); code == "" || code != sqlstate(why) { // else the caller is told, and had asked in vain
		l.complain("a place in line was not given up", err)
	}
}
