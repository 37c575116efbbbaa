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
	worked   context.Context // ends with the work
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
	granted, failed := make(chan *Lead), make(chan error, 1)
	go func() { failed <- l.tenure(ctx, name, wait, granted) }()
	var err error
	select {
	case lead := <-granted:
		return lead.ctx, lead, nil
	case err = <-failed:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	return ctx, nil, err
}

// tenure is the whole life of a lead: its turn, its grant, the watch over it, its work, and its release.
func (l *Leases) tenure(ctx context.Context, name string, wait bool, granted chan<- *Lead) error {
	end, err := l.begin(ctx, "lead "+name, wait)
	if end == nil {
		return err
	}
	defer end()
	scope, asked, err := l.win(ctx, name, wait)
	if scope == nil {
		return err
	}
	lead := &Lead{Scope: scope, released: make(chan struct{})}
	lead.worked, lead.endWork = context.WithCancel(context.Background())
	defer close(lead.released)
	select {
	case granted <- lead:
		scope.watch(asked)
		<-lead.worked.Done()
	case <-ctx.Done():
		scope.cancel(nil)
	}
	l.release(name, scope.session, scope.fence)
	return nil
}

// win asks for the lease until it is granted. Without `wait` it asks once, and the scope may be nil without an error.
func (l *Leases) win(ctx context.Context, name string, wait bool) (scope *Scope, asked <-chan struct{}, err error) {
	inLine := "" // the session that may have a place in line
	defer func() {
		if scope == nil && inLine != "" {
			l.giveUp(name, inLine)
		}
	}()
	for wait || l.State() == Trusted {
		session, asked, err := l.ready(ctx)
		if err != nil {
			return nil, nil, err
		}
		if wait {
			inLine = session
		}
		answer, err := l.acquire(name, session, wait)
		if err != nil && !errors.Is(err, ErrLost) {
			return nil, nil, err
		}
		if answer.Granted {
			if scope, err = l.newScope(ctx, name, answer.Fence, session); err == nil {
				return scope, asked, nil
			}
			l.release(name, session, answer.Fence) // the trust has ended
		}
		if !wait {
			break
		}
		var again <-chan time.Time
		if err == nil && answer.Reason != "queued" { // it has no place in line
			again = time.After(250 * time.Millisecond)
		}
		select {
		case <-asked:
		case <-again:
		case <-ctx.Done():
		}
	}
	return nil, nil, nil
}

type grant struct {
	Granted      bool
	Fence, Trust int64 // 0 without one
	Reason       string
}

func (l *Leases) acquire(name, session string, wait bool) (grant, error) {
	sent := l.now()
	rows, err := query[grant](l.life, l, session, `SELECT granted, coalesce(fence, 0), coalesce(trust_ms, 0), reason
		FROM eskit_lease.lease_acquire($1::text, $2::uuid, queue => $3::boolean)`, name, session, wait)
	if err != nil {
		return grant{}, err
	}
	answer := rows[0]
	if answer.Granted { // a refusal tells no trust
		l.heard(session, sent, core.Answer{Alive: true, Trust: time.Duration(answer.Trust) * time.Millisecond})
	} else if answer.Reason == "expired" || answer.Reason == "unknown_session" {
		l.heard(session, sent, core.Answer{Alive: false})
	}
	return answer, nil
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
		answer, err := l.acquire(s.resource, s.session, false)
		if err == nil && answer.Fence != s.fence {
			err = errors.New("the server answers: " + answer.Reason)
		}
		if err != nil {
			s.end(err)
		}
		if answer.Granted && answer.Fence != s.fence {
			l.release(s.resource, s.session, answer.Fence)
		}
	}
}

func (l *Leases) release(name, session string, fence int64) {
	err := l.exec(session, `SELECT eskit_lease.lease_release($1::text, $2::bigint)`, name, fence)
	l.complain("a lease was not released", err)
}

// giveUp leaves the line, and releases what was granted before that.
func (l *Leases) giveUp(name, session string) {
	err := l.exec(session, `SELECT eskit_lease.lease_cancel($1::text, $2::uuid)`, name, session)
	if err == nil {
		err = l.exec(session, `SELECT released FROM eskit_lease.lease_release_many(ARRAY[$1::text], $2::uuid)`, name, session)
	}
	l.complain("a place in line was not given up", err)
}
