package lease

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"eskit.dev/lease/internal/core"
)

// second is the connection for all calls but heartbeats and waits. It makes one call at a time.
type second struct {
	turn   chan struct{} // full while a call is under way
	conn   *pgx.Conn
	used   time.Time
	closer *time.Timer
}

type answer struct{ Answer any }

const (
	idle         = 10 * time.Second       // after which the second connection is closed
	mayHaveEnded = 100 * time.Millisecond // an idle connection, by the server: after that it is looked at
)

// query repeats a call for a session until the server answers it: the call must be one that may be repeated. It returns
// ErrLost once the session is known to have ended, however long the server is silent: a session outlives a restart of
// its server, and would keep for good what nothing gives back. It returns ErrClosed when ctx is done.
func query[T any](ctx context.Context, l *Leases, session, sql string, args ...any) ([]T, error) {
	told := "55P03" // by a fenced transaction that is open, as is usual
	for pause := 50 * time.Millisecond; l.Session() == session; pause = min(2*pause, time.Second) {
		rows, err := try[T](ctx, l, session, sql, args...)
		if err == nil || answered(err) && !isBrief(err) {
			return rows, err
		}
		if code := sqlstate(err); answered(err) && code != told {
			told = code
			l.complain("a call is refused for now", err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, errors.Join(ErrClosed, err)
		}
	}
	return nil, ErrLost
}

// exec repeats the call of a function, whose answer does not matter, until the server answers it.
func (l *Leases) exec(session, sql string, args ...any) error {
	return l.execIn(l.life, session, sql, args...)
}

// execIn is exec until ctx is done. The call waits for fenced transactions that are open. Its wait is limited, as the
// server does not notice that a call is given up, and would go on waiting beside the next one.
func (l *Leases) execIn(ctx context.Context, session, sql string, args ...any) error {
	sql += fmt.Sprintf(" FROM set_config('lock_timeout', '%d ms', true)", l.ttl.Milliseconds()/4)
	_, err := query[answer](ctx, l, session, sql, args...)
	return err
}

// fail tells the server an error, as the last argument of a call. It is told in other words if the server cannot store
// its text: what is not told keeps an item claimed, or a key running, for as long as the session lives.
func (l *Leases) fail(session, sql string, why error, args ...any) error {
	text := strings.ReplaceAll(strings.ToValidUTF8(why.Error(), "\ufffd"), "\x00", "\ufffd")
	err := l.exec(session, sql, append(args, text)...)
	if answered(err) && sqlstate(err) != "LF001" && !errors.Is(err, ErrLost) {
		err = l.exec(session, sql, append(args, "the error's text could not be stored")...)
	}
	return err
}

// isBrief tells whether the server refused a call only for now.
func isBrief(err error) bool {
	switch code := sqlstate(err); code {
	case "55P03", "57014", "40001", "40P01", "25006": // 25006: the server stands by, until it is promoted
		return true
	default:
		return strings.HasPrefix(code, "53") && code != "53400" // of its resources, but not a limit that was set
	}
}

// try makes a call for a session once, and returns its rows by the position of their columns.
func try[T any](ctx context.Context, l *Leases, session, sql string, args ...any) (rows []T, err error) {
	s := &l.second
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return nil, ErrClosed
	}
	ctx, cancel := context.WithTimeout(ctx, l.ttl/2)
	defer cancel()
	s.closer.Stop()
	if s.conn != nil && time.Since(s.used) > mayHaveEnded && hasEnded(ctx, s.conn) {
		reset(s.conn)
		s.conn = nil
	}
	if s.conn == nil {
		if s.conn, err = l.connect(ctx); err != nil {
			return nil, err
		}
	}
	sent := l.now()
	if rows, err = rowsOf[T](ctx, s.conn, sql, args); err != nil && !answered(err) {
		reset(s.conn)
		s.conn = nil
		return nil, err
	}
	if sqlstate(err) == "LF003" {
		l.heard(session, sent, core.Answer{Alive: false})
		err = errors.Join(ErrLost, err)
	}
	s.used = time.Now()
	s.closer.Reset(idle)
	return rows, err
}

// hasEnded tells whether the server has ended an idle connection. A call on it would be lost, and the keeper would not
// know whether it was made.
func hasEnded(ctx context.Context, conn *pgx.Conn) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	_, err := conn.PgConn().ReceiveMessage(ctx)
	return err != nil && !pgconn.Timeout(err)
}

// hangUp closes the second connection, once no call is under way.
func (s *second) hangUp() {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	if s.conn != nil {
		hangUp(s.conn)
		s.conn = nil
	}
}

// hangUp closes a connection at once: politely, if it is still good.
func hangUp(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_ = conn.Close(ctx)
	_ = conn.PgConn().Conn().Close() // pgx keeps a broken one open for up to 15 s, to cancel its statement
}

// reset closes a connection, and discards what it has sent and the network not delivered. After a mere close the kernel
// would go on sending it, and the call could arrive when nothing wants it any more.
func reset(conn *pgx.Conn) {
	end := conn.PgConn().Conn()
	if secured, ok := end.(interface{ NetConn() net.Conn }); ok {
		end = secured.NetConn()
	}
	if tcp, ok := end.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = end.Close()
}

// rowsOf runs a statement without preparing it under a name, as poolers need it.
func rowsOf[T any](ctx context.Context, conn *pgx.Conn, sql string, args []any) ([]T, error) {
	rows, err := conn.Query(ctx, sql, append([]any{pgx.QueryExecModeExec}, args...)...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[T])
}
