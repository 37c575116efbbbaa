package lease

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"eskit.dev/lease/internal/core"
)

const idle = 10 * time.Second // after which the second connection is closed

// second is the connection of all calls but heartbeats and waits, one at a time.
type second struct {
	turn   chan struct{} // full while a call is under way
	conn   *pgx.Conn
	closer *time.Timer
}

// done is the row of a function that answers a boolean.
type done struct{ Done bool }

// query makes a call for a session until the server answers it. It gives up, with ErrLost, once the session is known to
// have ended; or with ErrClosed when ctx is done. So the call must be one that may be repeated.
func query[T any](ctx context.Context, l *Leases, session, sql string, args ...any) ([]T, error) {
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		if l.Session() != session {
			return nil, ErrLost
		}
		rows, err := try[T](ctx, l, session, sql, args...)
		code := sqlstate(err)
		if err == nil || answered(err) && code != "55P03" && code != "57014" {
			return rows, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, errors.Join(ErrClosed, err)
		}
	}
}

// try makes a call for a session once.
func try[T any](ctx context.Context, l *Leases, session, sql string, args ...any) ([]T, error) {
	select {
	case l.second.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ErrClosed
	}
	defer func() { <-l.second.turn }()
	ctx, cancel := context.WithTimeout(ctx, l.ttl/2)
	defer cancel()
	if l.second.closer != nil {
		l.second.closer.Stop()
	}
	if l.second.conn == nil {
		conn, err := l.dial(ctx)
		if err != nil {
			return nil, err
		}
		l.second.conn = conn
	}
	sent := l.now()
	rows, err := rowsOf[T](ctx, l.second.conn, sql, args)
	switch {
	case err != nil && !answered(err):
		hangUp(l.second.conn)
		l.second.conn = nil
		return nil, err
	case sqlstate(err) == "LF003":
		l.heard(session, sent, core.Answer{})
		err = errors.Join(ErrLost, err)
	}
	l.second.closer = time.AfterFunc(idle, l.second.hangUp)
	return rows, err
}

// hangUp closes the second connection, unless a call has begun meanwhile.
func (s *second) hangUp() {
	select {
	case s.turn <- struct{}{}:
		if s.conn != nil {
			hangUp(s.conn)
			s.conn = nil
		}
		<-s.turn
	default:
	}
}

// dial connects, within half of the TTL.
func (l *Leases) dial(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, l.ttl/2)
	defer cancel()
	return l.connect(ctx)
}

// hangUp closes a connection at once: politely, if it is still good and its buffer takes the farewell.
func hangUp(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_ = conn.Close(ctx)
	_ = conn.PgConn().Conn().Close() // what pgx would close later, after a timeout of its own
}

// rowsOf runs a statement without a name, as poolers want it.
func rowsOf[T any](ctx context.Context, conn *pgx.Conn, sql string, args []any) ([]T, error) {
	rows, err := conn.Query(ctx, sql, append([]any{pgx.QueryExecModeExec}, args...)...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByName[T])
}
