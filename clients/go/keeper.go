package lease

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"eskit.dev/lease/internal/core"
)

// line is the keeper's connection, or the try to make it. To give it up is to end its context.
type line struct {
	ctx    context.Context
	giveUp context.CancelFunc
	calls  chan call
}

type call struct {
	sql  string
	args []any
}

const (
	answers  = `SELECT alive, coalesce(trust_ms, 0) * interval '1 ms', coalesce(revision, 0), coalesce(reason, ''), '' FROM `
	openCall = `SELECT true, trust_ms * interval '1 ms', revision, '', session::text
		FROM eskit_lease.session_open($1::text, $2::interval, takeover => $3::boolean)`
	waitCall  = answers + `eskit_lease.session_wait($1::uuid, $2::bigint, $3::interval)`
	beatCall  = answers + `eskit_lease.session_heartbeat($1::uuid)`
	watchCall = answers + `eskit_lease.session_watch($1::uuid, $2::text::regclass)`
	closeCall = `SELECT eskit_lease.session_close($1::uuid)`
)

func (l *Leases) now() time.Duration { return time.Since(l.begun) }

// nextAsk returns what is closed at the next ask. A verb takes it before it asks the server, and so misses no news.
func (l *Leases) nextAsk() <-chan struct{} { return l.asked.Load().(chan struct{}) }

// step tells the core an event, does what it decides, and sets the timer for the next tick. It never waits, neither for
// the network nor for a logger: nothing holds up a cancellation.
func (l *Leases) step(event func(now time.Duration)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	event(l.now())
	for _, action := range l.core.Tick(l.now()) {
		l.do(action)
	}
	l.timer.Stop()
	if at := l.core.Deadline(); at != core.Never {
		l.timer.Reset(at - l.now())
	}
	state := l.core.State(l.now())
	if l.ending && state != Draining { // without trust all is cancelled, and what is given back waits for the server
		l.hurry()
	}
	if state == Closed && l.present != nil { // a connection that is still being made
		l.present.giveUp()
		l.present = nil
	}
	if state != l.state {
		l.state = state
		level := slog.LevelInfo
		if state == Doubting || state == Lost {
			level = slog.LevelWarn
		}
		l.afterwards(func() {
			l.log.Log(context.Background(), level, "eskit_lease: "+string(state), "consumer", l.name)
			l.hook(state)
		})
	}
}

func (l *Leases) do(action core.Action) {
	switch action.Do {
	case "connect":
		ctx, giveUp := context.WithCancel(context.Background())
		l.present = &line{ctx, giveUp, make(chan call, 1)}
		go l.keep(l.present)
	case "disconnect":
		l.present.giveUp()
		l.present = nil
	case "open":
		l.present.calls <- call{openCall, []any{l.name, l.ttl, action.Takeover}}
	case "wait":
		l.present.calls <- call{waitCall, []any{l.core.Session, action.Revision, action.Timeout}}
	case "beat":
		if l.watch != "" {
			l.present.calls <- call{watchCall, []any{l.core.Session, l.watch}}
		} else {
			l.present.calls <- call{beatCall, []any{l.core.Session}}
		}
	case "cancel":
		l.cancelScopes(nil)
	case "ask":
		close(l.asked.Swap(make(chan struct{})).(chan struct{}))
	case "warn":
		if action.Why == "taken" {
			l.problem = errors.New("another process ended the session, while it was trusted")
		}
		l.warn("trouble with the session", l.problem)
	}
}

// keep is the life of one connection: it makes the connection, then one call after another.
func (l *Leases) keep(line *line) {
	l.line.Lock() // until the connection before is closed
	defer l.line.Unlock()
	ctx, cancel := context.WithTimeout(line.ctx, l.ttl/2)
	conn, err := l.dial(ctx)
	cancel()
	if err == nil {
		defer hangUp(conn)
	}
	l.happen(line, err, func(time.Duration) { l.core.Connected() })
	for err == nil || answered(err) {
		select {
		case <-line.ctx.Done():
			return
		case call := <-line.calls:
			var rows []core.Answer
			rows, err = rowsOf[core.Answer](line.ctx, conn, call.sql, call.args)
			if call.sql == watchCall && cannotWatch(err) { // the session lives on, without news
				l.warn("cannot watch "+l.watch, err)
				rows, err = rowsOf[core.Answer](line.ctx, conn, beatCall, call.args[:1])
			}
			l.happen(line, err, func(now time.Duration) {
				if err != nil {
					l.core.Failed(now, sqlstate(err))
				} else {
					l.told.Store("")
					l.core.Answered(now, rows[0])
				}
			})
		}
	}
}

// happen tells the core what happened to a connection, unless it was given up.
func (l *Leases) happen(line *line, problem error, event func(now time.Duration)) {
	l.step(func(now time.Duration) {
		switch {
		case l.present != line:
			return
		case problem != nil && !answered(problem):
			l.present = nil
			l.warn("no connection", problem)
			l.core.Disconnected(now)
		default:
			event(now)
		}
		l.problem = problem
	})
}

// cannotWatch tells whether the table to watch is the trouble: there is none, it is a view, or it may not be read.
func cannotWatch(err error) bool {
	code := sqlstate(err)
	return answered(err) && (code == "42P01" || code == "42809" || code == "42501")
}

// heard tells the core what another connection answered to a call for a session.
func (l *Leases) heard(session string, sent time.Duration, answer core.Answer) {
	l.step(func(now time.Duration) { l.core.Heard(now, session, sent, answer) })
}

// replace closes the session, and the keeper opens another.
func (l *Leases) replace(session string) error {
	l.step(func(now time.Duration) { l.core.Replaced(now, session) })
	return l.exec("", closeCall, session)
}

// warn logs a failure that no caller can be told, unless it was the last one that was logged, or the end of the session
// makes up for it.
func (l *Leases) warn(what string, err error) {
	if err == nil || errors.Is(err, ErrLost) || errors.Is(err, ErrClosed) {
		return
	}
	if told := what + sqlstate(err); l.told.Swap(told) != told {
		l.afterwards(func() { l.log.Warn("eskit_lease: "+what, "consumer", l.name, "error", err) })
	}
}

// afterwards has logs and hooks called outside of the lock, one after the other. It drops them while one of them hangs.
func (l *Leases) afterwards(call func()) {
	select {
	case l.later <- call:
	default:
	}
}

// callLater calls what is to be called afterwards, until nil comes.
func (l *Leases) callLater() {
	for call := <-l.later; call != nil; call = <-l.later {
		call()
	}
}
