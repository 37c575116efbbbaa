package lease

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Item is a work item that this process has claimed.
type Item struct {
	ID      int64
	Key     string // empty without one
	Payload json.RawMessage
	Attempt int // from 1
	Fence   int64
}

// Decode decodes the payload.
func (i Item) Decode(into any) error { return json.Unmarshal(i.Payload, into) }

// Handler handles an item. What it does by tx is committed together with the end of the item. If it fails, the
// transaction is rolled back, and the item is tried again as its queue says. ctx is cancelled when the trust in the
// session ends.
type Handler func(ctx context.Context, tx pgx.Tx, item Item) error

// Work claims items of a queue, and handles as many at once as concurrency says, each in a transaction on a connection
// from db.
//
// Work returns when ctx is done or the keeper drains, and the handlers that have begun have ended; or with the server's
// error. After a drain it returns nil. It waits for items to be given back for a TTL; after that, this goes on in the
// background.
func (l *Leases) Work(ctx context.Context, queue string, concurrency int, db Beginner, handle Handler) error {
	if concurrency < 1 {
		return fmt.Errorf("lease: a concurrency of %d", concurrency)
	}
	end, err := l.begin(ctx, "queue "+queue, true)
	if err != nil {
		return err
	}
	w := &worker{l: l, ctx: ctx, queue: queue, concurrency: concurrency, db: db, handle: handle, busy: map[claim]bool{},
		ended: make(chan func())}
	return l.attend(ctx, &w.crew, func() error { return l.tend(ctx, w.ended, w.look) }, func() {
		defer end()
		for len(w.busy) > 0 {
			(<-w.ended)()
		}
		for w.unsure != "" && w.unsure == l.Session() && l.State() != Draining { // which ends by closing the session
			if err := w.unclaimStray(w.unsure); err == nil || answered(err) && !isBrief(err) {
				l.complain("a claim's answer was lost, and its items were not given back", err)
				return
			}
			time.Sleep(min(time.Second, l.ttl/6))
		}
	})
}

type claim struct{ id, fence int64 }

// worker is a call of Work.
type worker struct {
	l           *Leases
	ctx         context.Context
	queue       string
	concurrency int
	db          Beginner
	handle      Handler
	busy        map[claim]bool // items that have a handler
	ended       chan func()
	crew        crew
	hungry      <-chan struct{} // closed at the first ask after a claim that got fewer items than it asked for
	unsure      string          // a session that may have claimed items in a call whose answer was lost
}

// look claims items for the handlers that are free, and begins to handle them.
func (w *worker) look(session string, asked <-chan struct{}) error {
	free := w.concurrency - len(w.busy)
	if free == 0 || w.hungry == asked {
		return nil
	}
	if w.unsure == session {
		if err := w.unclaimStray(session); err != nil {
			return err
		}
	}
	w.unsure, w.hungry = "", nil
	items, err := try[Item](w.l.life, w.l, session, `SELECT id, coalesce(key, ''), payload, attempt, fence
		FROM eskit_lease.item_claim($1::text, $2::uuid, $3::int)`, w.queue, session, min(free, 1000))
	if err != nil && !answered(err) {
		w.unsure = session
	}
	if err == nil && len(items) < min(free, 1000) {
		w.hungry = asked
	}
	for _, item := range items {
		w.busy[claim{item.ID, item.Fence}] = true
		go w.run(session, item)
	}
	return err
}

// unclaimStray gives items back that the session has claimed, and that no handler has. A role that may not look for
// them closes the session, which frees them, and the keeper opens another.
func (w *worker) unclaimStray(session string) error {
	rows, err := try[struct{ ID, Fence int64 }](w.l.life, w.l, session, `SELECT id, fence FROM eskit_lease.items
		WHERE queue = $1::text AND session = $2::uuid AND state = 'claimed'`, w.queue, session)
	if sqlstate(err) == "42501" {
		w.l.complain("a claim's answer was lost, and without grant_monitor its items cannot be looked for: a new session", err)
		return w.l.renounce(session)
	}
	for _, row := range rows {
		if !w.busy[claim{row.ID, row.Fence}] && err == nil {
			err = w.unclaim(session, row.ID, row.Fence)
		}
	}
	return err
}

func (w *worker) unclaim(session string, id, fence int64) error {
	return w.l.exec(session, `SELECT eskit_lease.item_unclaim(ARRAY[$1::bigint], $2::bigint)`, id, fence)
}

// run handles an item. A handler that has begun may finish, whatever becomes of the context of Work.
func (w *worker) run(session string, item Item) {
	defer func() { w.ended <- func() { delete(w.busy, claim{item.ID, item.Fence}) } }()
	begun, name := false, fmt.Sprintf("%s/%d", w.queue, item.ID)
	s, err := w.l.newScope(context.WithoutCancel(w.ctx), name, item.Fence, session)
	if err == nil {
		defer s.cancel(nil)
		if err = context.Canceled; w.crew.begin(w.ctx) {
			err = s.transact(s.ctx, until{w.db, w.ctx}, func(ctx context.Context, tx pgx.Tx) error {
				begun = true
				return w.handle(ctx, tx, item)
			}, func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `SELECT eskit_lease.item_done(ARRAY[$1::bigint], $2::bigint)`, item.ID, item.Fence)
				return err
			})
			w.crew.working.Done()
		}
	}
	switch {
	case err == nil:
		return
	case begun: // after an unknown commit, too: then LF001 says that the item was done
		err = w.l.fail(session, `SELECT eskit_lease.item_fail($1::bigint, $2::bigint, $3::text)`, err, item.ID, item.Fence)
	default:
		if s != nil && w.ctx.Err() == nil {
			w.l.complain("no transaction for an item", err)
			s.pause(time.Second)
		}
		err = w.unclaim(session, item.ID, item.Fence)
	}
	if sqlstate(err) != "LF001" {
		w.l.complain("an item was not given back", err)
	}
}

// until begins no transaction after its context.
type until struct {
	db  Beginner
	ctx context.Context
}

func (u until) Begin(ctx context.Context) (pgx.Tx, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(u.ctx, cancel)()
	return u.db.Begin(ctx)
}
