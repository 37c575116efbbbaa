package lease

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"eskit.dev/lease/internal/core"
)

// line is the keeper's connection, or the try to make it. To give it up is to end its context.
type line struct {
	ctx     context.Context
	giveUp  context.CancelFunc
	calls   chan core.Action
	session string // of the call that is under way
}

func (l *Leases) now() time.Duration { return time.Since(l.begun) }

// step tells the core an event, does what it decides, and sets the timer for the next tick. It never waits, neither for
// the network nor for a logger: nothing holds up a cancellation.
func (l *Leases) step(event func(now time.Duration) []core.Action) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, action := range event(l.now()) {
		l.do(action)
	}
	l.timer.Stop()
	if at, due := l.core.Deadline(); due {
		l.timer.Reset(at - l.now())
	}
	if state := l.core.State(l.now()); state != l.state {
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
	switch action.Kind {
	case core.Connect:
		ctx, giveUp := context.WithCancel(context.Background())
		l.present = &line{ctx: ctx, giveUp: giveUp, calls: make(chan core.Action, 1)}
		go l.keep(l.present)
	case core.Disconnect:
		l.present.giveUp()
		l.present = nil
	case core.Open, core.Wait, core.Beat:
		l.present.session = l.core.Session
		l.present.calls <- action
	case core.Cancel:
		l.cancelScopes(nil)
	case core.Ask:
		close(l.asked)
		l.asked = make(chan struct{})
	case core.Warn:
		if action.Why == "taken" {
			l.warn("another process has ended the session, which was trusted", nil)
		} else {
			l.warn("a call failed", l.problem)
		}
	}
}

// keep is the life of one connection: it makes the connection, then one call after another.
func (l *Leases) keep(line *line) {
	l.line.Lock() // until the connection before is closed
	defer l.line.Unlock()
	ctx, cancel := context.WithTimeout(line.ctx, l.ttl/2)
	conn, err := l.connect(ctx)
	cancel()
	if err != nil {
		l.happen(line, err, l.core.Disconnected)
		return
	}
	defer hangUp(conn)
	l.happen(line, nil, l.core.Connected)
	for {
		select {
		case <-line.ctx.Done():
			return
		case action := <-line.calls:
			answer, err := l.ask(line, conn, action)
			switch {
			case err == nil:
				l.happen(line, nil, func(now time.Duration) []core.Action {
					l.told = ""
					return l.core.Answered(now, answer)
				})
			case answered(err):
				l.happen(line, err, func(now time.Duration) []core.Action { return l.core.Failed(now, sqlstate(err)) })
			default:
				l.happen(line, err, l.core.Disconnected)
				return
			}
		}
	}
}

// happen tells the core what happened to a connection, unless it was given up.
func (l *Leases) happen(line *line, problem error, event func(time.Duration) []core.Action) {
	l.step(func(now time.Duration) []core.Action {
		if l.present != line {
			return nil
		}
		l.problem = problem
		if problem != nil && !answered(problem) {
			l.present = nil
			line.giveUp()
			l.warn("no connection", problem)
		}
		return event(now)
	})
}

// ask makes a call on the keeper's connection.
func (l *Leases) ask(line *line, conn *pgx.Conn, action core.Action) (core.Answer, error) {
	const answer = `SELECT alive, coalesce(trust_ms, 0), coalesce(revision, 0), coalesce(reason, ''), '' FROM `
	sql, args := answer+`eskit_lease.session_heartbeat($1::uuid)`, []any{line.session}
	switch {
	case action.Kind == core.Open:
		sql = `SELECT true, trust_ms, revision, '', session::text
			FROM eskit_lease.session_open($1::text, $2::interval, takeover => $3::boolean)`
		args = []any{l.name, l.ttl, action.Takeover}
	case action.Kind == core.Wait:
		sql = answer + `eskit_lease.session_wait($1::uuid, $2::bigint, $3::interval)`
		args = append(args, action.Revision, action.Timeout)
	case l.watch != "":
		sql = answer + `eskit_lease.session_watch($1::uuid, $2::text::regclass)`
		args = append(args, l.watch)
	}
	rows, err := rowsOf[struct {
		Alive           bool
		Trust, Revision int64
		Reason, Session string
	}](line.ctx, conn, sql, args)
	if err != nil {
		return core.Answer{}, err
	}
	row := rows[0]
	trust := time.Duration(row.Trust) * time.Millisecond
	return core.Answer{Alive: row.Alive, Trust: trust, Revision: row.Revision, Reason: row.Reason,
		Session: row.Session}, nil
}

// heard tells the core what another connection answered to a call for a session.
func (l *Leases) heard(session string, sent time.Duration, answer core.Answer) {
	l.step(func(now time.Duration) []core.Action {
		if session != l.core.Session {
			return nil
		}
		return l.core.Heard(now, sent, answer)
	})
}

// warn logs a problem, unless it was the last one that was logged.
func (l *Leases) warn(what string, err error) {
	if told := what + sqlstate(err); told != l.told {
		l.told = told
		about := []any{"consumer", l.name}
		if err != nil {
			about = append(about, "error", err)
		}
		l.afterwards(func() { l.log.Warn("eskit_lease: "+what, about...) })
	}
}

// complain logs a failure that no caller can be told, unless the end of the session makes up for it.
func (l *Leases) complain(what string, err error) {
	if err != nil && !errors.Is(err, ErrLost) && !errors.Is(err, ErrClosed) {
		l.log.Warn("eskit_lease: "+what, "consumer", l.name, "error", err)
	}
}

// afterwards calls functions one after the other, outside of the lock.
func (l *Leases) afterwards(call func()) {
	l.later = append(l.later, call)
	if len(l.later) > 1 {
		return
	}
	go func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		for ; len(l.later) > 0; l.later = l.later[1:] {
			next := l.later[0]
			l.mu.Unlock()
			next()
			l.mu.Lock()
		}
	}()
}

// flush waits a moment for what is called afterwards, so that a program that ends has told all.
func (l *Leases) flush() {
	flushed := make(chan struct{})
	l.mu.Lock()
	l.afterwards(func() { close(flushed) })
	l.mu.Unlock()
	select {
	case <-flushed:
	case <-time.After(100 * time.Millisecond): // a hook may be waiting for this very Close
	}
}
