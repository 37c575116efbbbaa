package lease

import (
	"context"
	"encoding/json"
	"errors"
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
	w := &worker{crew: crew{Leases: l}, queue: queue, concurrency: concurrency, db: db, handle: handle,
		busy: map[claim]bool{}}
	return w.attend(ctx, "queue "+queue, w.look, w.leave)
}

type claim struct{ ID, Fence int64 }

// worker is a call of Work.
type worker struct {
	crew
	queue       string
	concurrency int
	db          Beginner
	handle      Handler
	busy        map[claim]bool  // items that have a handler
	hungry      <-chan struct{} // closed at the first ask after a claim that got fewer items than it asked for
	unsure      string          // a session that may have claimed items in a call whose answer was lost
}

// look claims items for the handlers that are free, and begins to handle them.
func (w *worker) look(session string, asked <-chan struct{}) (bool, error) {
	free := min(w.concurrency-len(w.busy), 1000)
	if free == 0 || w.hungry == asked {
		return false, nil
	}
	if w.unsure == session {
		if err := w.unclaimStray(); err != nil {
			return stays(err), err
		}
	}
	w.unsure, w.hungry = "", nil
	w.second.refresh()
	items, err := try[Item](w.Leases, session, `SELECT id, coalesce(key, ''), payload, attempt, fence
		FROM eskit_lease.item_claim($1::text, $2::uuid, $3::int)`, w.queue, session, free)
	if err != nil && !answered(err) && !errors.Is(err, errUnsent) {
		w.unsure = session
	}
	if err == nil && len(items) < free {
		w.hungry = asked
	}
	for _, item := range items {
		w.busy[claim{item.ID, item.Fence}] = true
		go w.run(session, item)
	}
	return stays(err), err
}

// unclaimStray gives items back that the session has claimed, and that no handler has. A role that may not look for
// them closes the session, which frees them, and the keeper opens another.
func (w *worker) unclaimStray() error {
	session := w.unsure
	rows, err := query[claim](w.Leases, session, `SELECT id, fence FROM eskit_lease.items
		WHERE queue = $1::text AND session = $2::uuid AND state = 'claimed'`, w.queue, session)
	if sqlstate(err) == "42501" {
		w.warn("a claim's answer was lost, and without grant_monitor its items cannot be looked for: a new session", err)
		return w.replace(session)
	}
	for _, row := range rows {
		if !w.busy[row] && err == nil {
			err = w.unclaim(session, row)
		}
	}
	return err
}

func (w *worker) unclaim(session string, item claim) error {
	return w.exec(session, `SELECT eskit_lease.item_unclaim(ARRAY[$1::bigint], $2::bigint)`, item.ID, item.Fence)
}

// run handles an item. A handler that has begun may finish, whatever becomes of the context of Work.
func (w *worker) run(session string, item Item) {
	begun, claimed := false, claim{item.ID, item.Fence}
	s, err := w.start(context.WithoutCancel(w.ctx), fmt.Sprintf("%s/%d", w.queue, item.ID), item.Fence, session)
	defer s.cancel(nil)
	if err == nil {
		waits := context.AfterFunc(w.ctx, func() { s.cancel(nil) })
		defer waits()
		err = s.transact(s.ctx, w.db, func(ctx context.Context, tx pgx.Tx) error {
			if begun = waits(); !begun {
				return context.Cause(w.ctx)
			}
			return w.handle(ctx, tx, item)
		}, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `SELECT eskit_lease.item_done(ARRAY[$1::bigint], $2::bigint)`, item.ID, item.Fence)
			return err
		})
		w.working.Done()
	}
	if begun && err != nil { // after an unknown commit, too: then LF001 says that the item was done
		err = w.fail(session, `SELECT eskit_lease.item_fail($1::bigint, $2::bigint, $3::text)`, err, item.ID, item.Fence)
	}
	if err != nil && sqlstate(err) != "LF001" { // it had no transaction, or its failure was refused
		if w.ctx.Err() == nil {
			w.warn("an item is given back", err)
			s.pause(time.Second) // not at all if the scope has ended
		}
		err = w.unclaim(session, claimed)
	}
	if sqlstate(err) != "LF001" { // which it raises if it is repeated
		w.warn("an item was not given back", err)
	}
	w.ended <- func() { delete(w.busy, claimed) }
}

// leave waits for the handlers, and gives back what a claim without an answer has brought.
func (w *worker) leave() {
	for len(w.busy) > 0 {
		(<-w.ended)()
	}
	if w.unsure != "" && w.State() != Draining { // which ends by closing the session
		w.warn("a claim's answer was lost, and its items were not given back", w.unclaimStray())
	}
}
