package lease

import (
	"context"
	"errors"
	"slices"
	"time"

	"eskit.dev/lease/internal/core"
)

// Lead is a [Scope] of a leader. Release it when its work has ended.
type Lead struct {
	*Scope
	worked   context.Context // ends with the work
	release  context.CancelFunc
	released chan struct{}
}

// Lead waits for leadership. The context is the leader's: it is cancelled when the leadership ends, and context.Cause
// tells why. If ctx ends while it waits, the place in line is given up. Two leads of one name in a process follow one
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

// TryLead leads at once or not at all: then the lead is nil, without an error.
func (l *Leases) TryLead(ctx context.Context, name string) (context.Context, *Lead, error) {
	return l.lead(ctx, name, false)
}

func (l *Leases) lead(ctx context.Context, name string, wait bool) (context.Context, *Lead, error) {
	end, err := l.begin()
	if err != nil {
		return ctx, nil, err
	}
	granted, failed := make(chan *Lead), make(chan error, 1)
	go func() {
		defer end()
		failed <- l.tenure(ctx, name, wait, granted)
	}()
	select {
	case lead := <-granted:
		return lead.ctx, lead, nil
	case err = <-failed:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	return ctx, nil, err
}

// Release ends the scope, and releases the lease to the first in line. It waits for fenced transactions that are open:
// end them before. If that takes longer than a TTL, Release returns, and the release goes on.
func (d *Lead) Release() {
	d.cancel(nil)
	d.release()
	select {
	case <-d.released:
	case <-time.After(d.leases.ttl):
	}
}

// tenure is the whole life of a lead: its turn, its grant, the watch over it, and its release.
func (l *Leases) tenure(ctx context.Context, name string, wait bool, granted chan<- *Lead) error {
	endTurn, err := l.turn(ctx, "lead "+name, wait)
	if endTurn == nil {
		return err
	}
	defer endTurn()
	scope, asked, err := l.granted(ctx, name, wait)
	if scope == nil {
		return err
	}
	lead := &Lead{Scope: scope, released: make(chan struct{})}
	lead.worked, lead.release = context.WithCancel(context.Background())
	defer close(lead.released)
	fence := scope.fence
	select {
	case granted <- lead:
		fence = scope.watch(asked)
		<-lead.worked.Done()
	case <-ctx.Done():
		scope.cancel(nil)
	}
	l.release(name, scope.session, scope.fence, fence)
	return nil
}

type grant struct {
	Granted bool
	Fence   *int64
	TrustMs *int64
	Reason  string
}

func (l *Leases) acquire(name, session string, wait bool) (grant, error) {
	sent := l.now()
	rows, err := query[grant](l.life, l, session, `SELECT granted, fence, trust_ms, reason
		FROM eskit_lease.lease_acquire($1::text, $2::uuid, queue => $3::boolean)`, name, session, wait)
	if err != nil {
		return grant{}, err
	}
	switch row := rows[0]; {
	case row.Reason == "expired" || row.Reason == "unknown_session":
		l.heard(session, sent, core.Answer{})
		return row, ErrLost
	case row.TrustMs != nil:
		l.heard(session, sent, core.Answer{Alive: true, Trust: time.Duration(*row.TrustMs) * time.Millisecond})
	}
	return rows[0], nil
}

// granted asks for the lease until it is granted. Without `wait` it asks once, and the scope may be nil without an error.
func (l *Leases) granted(ctx context.Context, name string, wait bool) (scope *Scope, asked <-chan struct{}, err error) {
	placed := "" // the session that may have a place in line
	defer func() {
		if scope == nil && placed != "" {
			l.giveUp(name, placed)
		}
	}()
	for {
		if !wait && l.State() != Trusted {
			return nil, nil, nil
		}
		session, asked, err := l.ready(ctx)
		if err != nil {
			return nil, nil, err
		}
		if wait {
			placed = session
		}
		row, err := l.acquire(name, session, wait)
		switch {
		case err != nil && !errors.Is(err, ErrLost):
			return nil, nil, err
		case err == nil && row.Granted:
			if scope, err = l.newScope(ctx, name, or(row.Fence), session); err == nil {
				return scope, asked, nil
			}
			l.release(name, session, or(row.Fence)) // trust has ended meanwhile
		}
		if !wait {
			return nil, nil, nil
		}
		var again <-chan time.Time // a refusal without a place in line
		if err == nil && row.Reason != "queued" {
			again = time.After(250 * time.Millisecond)
		}
		select {
		case <-asked:
		case <-again:
		case <-ctx.Done():
		}
	}
}

// giveUp leaves the line, and releases what was granted before that.
func (l *Leases) giveUp(name, session string) {
	_, err := query[done](l.life, l, session, `SELECT eskit_lease.lease_cancel($1::text, $2::uuid) AS done`, name, session)
	if err == nil {
		_, _ = query[done](l.life, l, session,
			`SELECT released AS done FROM eskit_lease.lease_release_many(ARRAY[$1::text], $2::uuid)`, name, session)
	}
}

// watch asks again at each ask, until the scope has ended. It returns the last fence, which may be a new one.
func (s *Scope) watch(asked <-chan struct{}) int64 {
	l := s.leases
	for {
		select {
		case <-s.ctx.Done():
			return s.fence
		case <-asked:
		}
		l.mu.Lock()
		asked = l.asked
		l.mu.Unlock()
		row, err := l.acquire(s.resource, s.session, false)
		switch {
		case err != nil:
			s.end(err)
		case row.Reason != "already_held" || or(row.Fence) != s.fence:
			s.end(errors.New(row.Reason))
			if row.Granted {
				return *row.Fence
			}
		}
	}
}

// release releases the lease under each of the fences, unless the session has ended.
func (l *Leases) release(name, session string, fences ...int64) {
	for _, fence := range slices.Compact(fences) {
		_, err := query[done](l.life, l, session, `SELECT eskit_lease.lease_release($1::text, $2::bigint) AS done`, name, fence)
		l.complainUnlessOver("a lease was not released", err)
	}
}
