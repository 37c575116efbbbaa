package lease

import (
	"context"
	"database/sql"

	"github.com/jackc/pgx/v5"
)

// SQL lets a transaction of database/sql be guarded: lead.Guard(ctx, lease.SQL(tx)).
func SQL(tx *sql.Tx) Tx { return sqlTx{tx} }

type sqlTx struct{ tx *sql.Tx }

func (t sqlTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return t.tx.QueryRowContext(ctx, sql, args...)
}

func (t sqlTx) Rollback(context.Context) error { return t.tx.Rollback() }
