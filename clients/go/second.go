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

const idle = 10 * time.Second // after which the second connection is closed

// query repeats a call for a session until the server answers it: the call must be one that may be repeated. It returns
// ErrLost once the session is known to have ended, however long the server is silent: a session outlives a restart of
// its server, and would keep for good what nothing gives back. A call for no session is repeated in any case.
func query[T any](l *Leases, session, sql string, args ...any) ([]T, error) {
	for pause := 50 * time.Millisecond; session == "" || l.Session() == session; pause = min(2*pause, time.Second) {
		rows, err := try[T](l, session, sql, args...)
		if err == nil || answered(err) && !isBrief(err) {
			return rows, err
		}
		if sqlstate(err) != "55P03" { // by a fenced transaction that is open, as is usual
			l.warn("a call is made again", err)
		}
		select {
		case <-time.After(pause):
		case <-l.life.Done():
			return nil, ErrClosed
		}
	}
	return nil, ErrLost
}

// exec repeats the call of a function, whose answer does not matter, until the server answers it. The call waits for
// fenced transactions that are open. Its wait is limited, as the server does not notice that a call is given up, and
// would go on waiting beside the next one.
func (l *Leases) exec(session, sql string, args ...any) error {
	sql += fmt.Sprintf(" FROM set_config('lock_timeout', '%d ms', true)", l.ttl.Milliseconds()/4)
	_, err := query[struct{ Answer any }](l, session, sql, args...)
	return err
}

// tell is exec where no caller can be told an error: it is logged.
func (l *Leases) tell(failure, session, sql string, args ...any) {
	l.warn(failure, l.exec(session, sql, args...))
}

// fail tells the server an error, as the last argument of a call. It is told in other words if the server cannot store
// its text: what is not told keeps an item claimed, or a key running, for as long as the session lives.
func (l *Leases) fail(session, sql string, why error, args ...any) error {
	text := strings.ReplaceAll(strings.ToValidUTF8(why.Error(), "\ufffd"), "\x00", "\ufffd")
	err := l.exec(session, sql, append(args, text)...)
	if stays(err) && sqlstate(err) != "LF001" {
		err = l.exec(session, sql, append(args, "the error's text could not be stored")...)
	}
	return err
}

// try makes a call for a session once, and returns its rows by the position of their columns.
func try[T any](l *Leases, session, sql string, args ...any) (rows []T, err error) {
	s := &l.second
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	ctx, cancel := context.WithTimeout(l.life, l.ttl/2)
	defer cancel()
	s.closer.Stop()
	if s.conn == nil {
		if s.conn, err = l.dial(ctx); err != nil {
			return nil, err
		}
	}
	sent := l.now()
	if rows, err = rowsOf[T](ctx, s.conn, sql, args); err != nil && !answered(err) {
		s.drop()
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

// refresh drops a connection that the server has ended while it was idle. A call on it would be lost, and the keeper
// would not know whether it was made.
func (s *second) refresh() {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	if s.conn == nil || time.Since(s.used) < 100*time.Millisecond {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if _, err := s.conn.PgConn().ReceiveMessage(ctx); err != nil && !pgconn.Timeout(err) {
		s.drop()
	}
}

// close closes the connection, once no call is under way.
func (s *second) close() {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	s.drop()
}

func (s *second) drop() {
	if s.conn != nil {
		hangUp(s.conn)
		s.conn = nil
	}
}

// errUnsent: there is no connection. So a call was not sent, and what it would have taken is not taken.
var errUnsent = errors.New("cannot connect")

// dial makes a connection. Its error is no answer to a call, although the server may have raised it.
func (l *Leases) dial(ctx context.Context) (*pgx.Conn, error) {
	conn, err := l.connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnsent, err)
	}
	return conn, nil
}

// hangUp closes a connection at once: politely, if it is still good. If not, it discards what was sent and the network
// has not delivered. After a mere close the kernel would go on sending it, and the call could arrive when nothing wants
// it any more. And pgx keeps a broken one open for up to 15 s, to cancel its statement.
func hangUp(conn *pgx.Conn) {
	end := conn.PgConn().Conn()
	if secured, ok := end.(interface{ NetConn() net.Conn }); ok {
		end = secured.NetConn()
	}
	if tcp, ok := end.(*net.TCPConn); ok && conn.IsClosed() {
		_ = tcp.SetLinger(0)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_ = conn.Close(ctx)
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
