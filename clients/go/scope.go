package lease

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Scope is what a process may do under one fence, until its context is cancelled. A scope that has ended never lives
// again.
type Scope struct {
	leases   *Leases
	resource string
	fence    int64
	session  string
	ctx      context.Context
	cancel   context.CancelCauseFunc
	news     atomic.Value // the channel of the ask that News waits for
}

// newScope begins a scope. It has ended, with an error, if ctx is done, the session is not trusted any more, or drains.
func (l *Leases) newScope(ctx context.Context, resource string, fence int64, session string) (*Scope, error) {
	s := &Scope{leases: l, resource: resource, fence: fence, session: session}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.core.Session != session || l.core.State(l.now()) != Trusted || ctx.Err() != nil {
		s.end(nil)
		return s, s.lost()
	}
	s.news.Store(l.nextAsk())
	l.scopes[s] = true
	context.AfterFunc(s.ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.scopes, s)
	})
	return s, nil
}

// cancelScopes cancels all scopes. The lock must be held.
func (l *Leases) cancelScopes(why error) {
	for s := range l.scopes {
		s.end(why)
	}
}

func (s *Scope) end(why error) { s.cancel(s.error(ErrLost, why)) }

func (s *Scope) error(kind, err error) error { return &Error{kind, s.resource, s.fence, err} }

// lost returns an error if the scope has ended.
func (s *Scope) lost() error {
	cause := context.Cause(s.ctx)
	if cause == nil || errors.Is(cause, ErrLost) {
		return cause
	}
	return s.error(ErrLost, cause)
}

// Name returns the name of the lease, or of the group.
func (s *Scope) Name() string { return s.resource }

// Fence returns the fencing token, which grows with each grant of the name.
func (s *Scope) Fence() int64 { return s.fence }

// Session returns the uuid of the session that holds the lease. Keep it private.
func (s *Scope) Session() string { return s.session }

// Context is cancelled when the scope ends; context.Cause then returns an [Error].
func (s *Scope) Context() context.Context { return s.ctx }

// Trusted tells whether the scope has not ended.
func (s *Scope) Trusted() bool { return s.ctx.Err() == nil }

// News waits for the first news since the scope began or News last returned: an event in the table of [WithWatch], or
// any change of the session. So a loop may read until it finds nothing, then call News, and misses nothing. It returns
// an error when the scope has ended.
func (s *Scope) News(ctx context.Context) error {
	select {
	case <-s.news.Load().(<-chan struct{}):
	case <-s.ctx.Done():
	case <-ctx.Done():
	}
	s.news.Store(s.leases.nextAsk())
	return cmp.Or(s.lost(), context.Cause(ctx))
}

// Tx is what a guard needs of an open transaction. A pgx.Tx is one; [SQL] makes one of a *sql.Tx.
type Tx interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Rollback(ctx context.Context) error
}

// SQL lets a transaction of database/sql be guarded: lead.Guard(ctx, lease.SQL(tx)). End it by its methods: after a
// COMMIT of your own in SQL, nothing tells the guard that it is in no transaction.
func SQL(tx *sql.Tx) Tx { return sqlTx{tx} }

type sqlTx struct{ tx *sql.Tx }

func (t sqlTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return t.tx.QueryRowContext(ctx, sql, args...)
}

func (t sqlTx) Rollback(context.Context) error { return t.tx.Rollback() }

// Beginner begins a transaction: a *pgx.Conn, a *pgxpool.Pool, or a function of your own in between.
type Beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// Guard checks the fence in a transaction of yours. Call it first, before you read what your writes depend on: from
// then to its end, no other process gets the lease. If you cannot tell afterwards whether COMMIT succeeded, call
// [Scope.Unsure].
func (s *Scope) Guard(ctx context.Context, tx Tx) error {
	var one int
	return s.check(ctx, tx, &one, `SELECT 1 FROM eskit_lease.fence_check($1::text, $2::bigint)`, s.resource, s.fence)
}

// check runs a statement about the fence in a transaction.
func (s *Scope) check(ctx context.Context, tx Tx, answer any, call string, args ...any) error {
	if err := s.lost(); err != nil {
		return err
	}
	if pg, ok := tx.(pgx.Tx); ok && pg.Conn() != nil && pg.Conn().PgConn().TxStatus() == 'I' {
		return ErrNoTransaction
	}
	err := tx.QueryRow(ctx, call, args...).Scan(answer)
	switch {
	case sqlstate(err) == "LF001": // for good
		s.end(err)
	case errors.Is(err, pgx.ErrTxClosed), errors.Is(err, sql.ErrTxDone):
		return fmt.Errorf("%w: %w", ErrNoTransaction, err)
	}
	return s.judge(err)
}

// judge says what an error of a transaction means.
func (s *Scope) judge(err error) error {
	known := (*Error)(nil)
	switch code := sqlstate(err); {
	case err == nil || errors.As(err, &known):
		return err
	case code == "LF001" || code == "55P03" || code == "40001":
		return s.error(ErrRefused, err)
	case code == "LF003":
		s.end(err)
	}
	if s.ctx.Err() != nil {
		return s.error(ErrLost, err)
	}
	return err
}

// Transaction begins a transaction, checks the fence, calls work, and commits. An error of work rolls back. What the
// transaction did is committed if and only if the error is nil; see [ErrUnsure] for the exception.
func (s *Scope) Transaction(ctx context.Context, db Beginner, work func(tx pgx.Tx) error) error {
	return s.transact(ctx, db, func(ctx context.Context, tx pgx.Tx) error { return s.Guard(ctx, tx) },
		func(_ context.Context, tx pgx.Tx) error { return work(tx) })
}

func (s *Scope) transact(ctx context.Context, db Beginner, steps ...func(context.Context, pgx.Tx) error) error {
	if err := s.lost(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.ctx, func() { cancel(context.Cause(s.ctx)) })()
	tx, err := db.Begin(ctx)
	if err != nil {
		return s.judge(err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.leases.ttl/2)
		defer cancel()
		_ = tx.Rollback(ctx) // does nothing after a commit
	}()
	for _, step := range steps {
		if err := step(ctx, tx); err != nil {
			return s.judge(err)
		}
	}
	err = tx.Commit(ctx)
	switch {
	case err == nil:
		return nil
	case answered(err), pgconn.SafeToRetry(err), errors.Is(err, pgx.ErrTxCommitRollback), errors.Is(err, pgx.ErrTxClosed):
		return s.judge(err) // it is rolled back
	}
	err = s.error(ErrUnsure, err)
	s.end(err)
	return err
}

// Unsure reports that a transaction of this scope may still commit. It ends the scope, so that the next one has a new
// fence, which is granted only once that transaction has ended.
func (s *Scope) Unsure() { s.end(s.error(ErrUnsure, nil)) }

// pause waits for a time, or until the scope has ended.
func (s *Scope) pause(pause time.Duration) {
	select {
	case <-time.After(pause):
	case <-s.ctx.Done():
	}
}
