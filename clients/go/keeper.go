package lease

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"eskit.dev/lease/internal/core"
)

// line is the keeper's connection, or the try to make it. It is given up by ending its context.
type line struct {
	ctx     context.Context
	giveUp  context.CancelFunc
	calls   chan core.Action
	session string // of the call that is under way
}

func (l *Leases) now() time.Duration { return time.Since(l.begun) }

// step tells the core an event, does what it decides, and sets the timer for the next tick. It never waits for the
// network, so nothing there can hold up a cancellation.
func (l *Leases) step(event func(now time.Duration) []core.Action) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, action := range event(l.now()) {
		l.do(action)
	}
	if at, due := l.core.Deadline(); due {
		l.timer.Reset(at - l.now())
	} else {
		l.timer.Stop()
	}
	if state := l.core.State(l.now()); state != l.state {
		l.state = state
		l.tell(state)
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
		l.warn(action.Why, nil)
	}
}

// keep is the life of one connection.
func (l *Leases) keep(line *line) {
	l.line.Lock() // until the one before is closed
	defer l.line.Unlock()
	conn, err := l.dial(line.ctx)
	if err != nil {
		l.lost(line, err)
		return
	}
	defer hangUp(conn)
	l.step(func(now time.Duration) []core.Action {
		if l.present != line {
			return nil
		}
		return l.core.Connected(now)
	})
	for {
		select {
		case <-line.ctx.Done():
			return
		case action := <-line.calls:
			answer, err := l.ask(line, conn, action)
			if err != nil && !answered(err) {
				l.lost(line, err)
				return
			}
			l.step(func(now time.Duration) []core.Action {
				switch {
				case l.present != line:
					return nil
				case err != nil:
					l.problem = err
					return l.core.Failed(now, sqlstate(err))
				}
				l.told = ""
				return l.core.Answered(now, answer)
			})
		}
	}
}

// ask makes one call on the keeper's connection.
func (l *Leases) ask(line *line, conn *pgx.Conn, action core.Action) (core.Answer, error) {
	var sql string
	var args []any
	switch {
	case action.Kind == core.Open:
		sql = `SELECT true AS alive, trust_ms, revision, NULL AS reason, session::text
			FROM eskit_lease.session_open($1::text, $2::interval, takeover => $3::boolean)`
		args = []any{l.name, l.ttl, action.Takeover}
	case action.Kind == core.Wait:
		sql = `SELECT alive, trust_ms, revision, reason, NULL AS session
			FROM eskit_lease.session_wait($1::uuid, $2::bigint, $3::interval)`
		args = []any{line.session, action.Revision, action.Timeout}
	case l.watch != "":
		sql = `SELECT alive, trust_ms, revision, reason, NULL AS session
			FROM eskit_lease.session_watch($1::uuid, $2::text::regclass)`
		args = []any{line.session, l.watch}
	default:
		sql = `SELECT alive, trust_ms, revision, reason, NULL AS session FROM eskit_lease.session_heartbeat($1::uuid)`
		args = []any{line.session}
	}
	rows, err := rowsOf[struct {
		Alive             bool
		TrustMs, Revision *int64
		Reason, Session   *string
	}](line.ctx, conn, sql, args)
	if err != nil {
		return core.Answer{}, err
	}
	row := rows[0]
	trust := time.Duration(or(row.TrustMs)) * time.Millisecond
	return core.Answer{Alive: row.Alive, Trust: trust, Revision: or(row.Revision), Reason: or(row.Reason),
		Session: or(row.Session)}, nil
}

// lost tells the core that the connection is lost, unless it was given up.
func (l *Leases) lost(line *line, err error) {
	l.step(func(now time.Duration) []core.Action {
		l.problem = err
		if l.present != line {
			return nil
		}
		l.present = nil
		l.warn("no connection", err)
		return l.core.Disconnected(now)
	})
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

// tell logs a new state, and calls the hook.
func (l *Leases) tell(state State) {
	level := slog.LevelInfo
	if state == Doubting || state == Lost {
		level = slog.LevelWarn
	}
	l.afterwards(func() {
		l.log.Log(context.Background(), level, "eskit_lease: "+string(state), "consumer", l.name)
		l.hook(state)
	})
}

// warn logs a problem, once until a call is answered.
func (l *Leases) warn(why string, err error) {
	if why != l.told {
		l.told = why
		l.afterwards(func() { l.log.Warn("eskit_lease: "+why, "consumer", l.name, "error", err) })
	}
}

// complain logs what went wrong with something that a caller cannot be told.
func (l *Leases) complain(what string, err error) {
	l.log.Warn("eskit_lease: "+what, "consumer", l.name, "error", err)
}

// complainUnlessOver complains, unless the end of the session does what was asked for.
func (l *Leases) complainUnlessOver(what string, err error) {
	if err != nil && !errors.Is(err, ErrLost) && !errors.Is(err, ErrClosed) {
		l.complain(what, err)
	}
}

// afterwards has functions called outside of the lock, one after the other.
func (l *Leases) afterwards(call func()) {
	l.later = append(l.later, call)
	if len(l.later) > 1 {
		return
	}
	go func() {
		for more := true; more; {
			call()
			l.mu.Lock()
			l.later = l.later[1:]
			if more = len(l.later) > 0; more {
				call = l.later[0]
			}
			l.mu.Unlock()
		}
	}()
}

// or returns what p points at, or zero.
func or[T any](p *T) (value T) {
	if p != nil {
		value = *p
	}
	return value
}
