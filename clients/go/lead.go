package lease

import (
	"cmp"
	"context"
	"errors"
	"time"

	"eskit.dev/lease/internal/core"
)

// Lead is the [Scope] of a leader. Release it when its work has ended.
type Lead struct {
	*Scope
	worked   context.Context
	endWork  context.CancelFunc
	released <-chan struct{}
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
	d.leases.isOver(d.ctx, d.released)
}

func (l *Leases) lead(ctx context.Context, name string, wait bool) (context.Context, *Lead, error) {
	gone := ctx
	if !wait && l != nil { // it does not wait for a server that is away, either
		asking, _ := l.newScope(ctx, name, 0, l.Session())
		defer asking.cancel(nil)
		gone = asking.ctx
	}
	var lead *Lead
	var failed error
	given := make(chan struct{})
	turn, err := l.verb(ctx, "lead "+name, wait, func() {
		var asked <-chan struct{}
		place := "" // the session that may have a place in line, or a lease without a scope
		failed = l.follow(gone, nil, func(session string, next <-chan struct{}) (bool, error) {
			got, err := l.acquire(name, session, wait)
			if used, _ := l.used.Load("lead " + name); used == got.Fence { // its release was refused
				got, err = grant{}, l.giveUp(name, session)
			}
			if err != nil || got.Granted || got.Reason == "queued" { // an error may follow an answer that was lost
				place = session
			}
			if got.Granted {
				if scope, err := l.newScope(ctx, name, got.Fence, session); err == nil {
					worked, endWork := context.WithCancel(context.Background())
					lead, asked = &Lead{scope, worked, endWork, nil}, next
					l.used.Store("lead "+name, got.Fence)
				}
			}
			switch {
			case lead != nil || !wait || stays(err):
				return true, err
			case got.Reason == "queued":
				return false, nil
			}
			return false, cmp.Or(err, errAgain) // it has no place in line
		})
		close(given)
		if lead != nil && lead.attend(asked) == nil {
			l.used.Delete("lead " + name)
		} else if place != "" {
			if err := l.giveUp(name, place); !stays(failed) { // else the caller is told
				l.warn("a lease, or a place in line, was not given up", err)
			}
		}
	})
	if turn == nil {
		return ctx, nil, err
	}
	select {
	case <-given:
	case <-gone.Done():
	}
	if gone.Err() != nil { // a call that is under way must end before the place is given up
		go func() {
			<-given
			lead.Release()
		}()
		return ctx, nil, context.Cause(ctx)
	}
	if lead == nil {
		return ctx, nil, failed
	}
	lead.released = turn
	return lead.ctx, lead, nil
}

// giveUp gives up a place in line, and then the lease, under whatever fence the session holds it.
func (l *Leases) giveUp(name, session string) error {
	cancelled := l.exec(session, `SELECT eskit_lease.lease_cancel($1::text, $2::uuid)`, name, session)
	err := l.exec(session, `SELECT eskit_lease.lease_release_many(ARRAY[$1::text], $2::uuid)`, name, session)
	if err == nil || errors.Is(err, ErrLost) {
		l.used.Delete("lead " + name)
	}
	return cmp.Or(err, cancelled)
}

type grant struct {
	Granted bool
	Fence   int64 // 0 without one
	Trust   time.Duration
	Reason  string
}

func (l *Leases) acquire(name, session string, queue bool) (grant, error) {
	sent := l.now()
	rows, err := query[grant](l, session, `SELECT granted, coalesce(fence, 0),
			coalesce(trust_ms, 0) * interval '1 ms', reason
		FROM eskit_lease.lease_acquire($1::text, $2::uuid, queue => $3::boolean)`, name, session, queue)
	if err != nil {
		return grant{}, err
	}
	got := rows[0]
	if ended := got.Reason == "expired" || got.Reason == "unknown_session"; ended || got.Granted { // others tell no trust
		l.heard(session, sent, core.Answer{Alive: !ended, Trust: got.Trust})
	}
	return got, nil
}

// attend asks again at each ask, until the scope has ended. Once its work has, it releases the lease.
func (d *Lead) attend(asked <-chan struct{}) error {
	l := d.leases
	for d.Trusted() {
		select {
		case <-d.ctx.Done():
			continue
		case <-asked:
		}
		asked = l.nextAsk()
		got, err := l.acquire(d.resource, d.session, false)
		if err == nil && got.Fence != d.fence {
			err = errors.New("the server answers: " + got.Reason)
		}
		if err != nil {
			d.end(err)
		}
		if got.Granted && got.Fence != d.fence {
			l.warn("a lease was not released", d.release(got.Fence))
		}
	}
	<-d.worked.Done()
	return d.release(d.fence)
}

// release releases the lease. If that is not held under the fence, the session may hold it under another.
func (d *Lead) release(fence int64) error {
	return d.leases.exec(d.session, `SELECT CASE WHEN NOT eskit_lease.lease_release($1::text, $2::bigint)
		THEN (SELECT released FROM eskit_lease.lease_release_many(ARRAY[$1::text], $3::uuid)) END`,
		d.resource, fence, d.session)
}
