package lease_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"eskit.dev/lease"
)

// A server that lets no connection in has answered no call: the member stays, and looks again.
func TestJoinWhileNoConnectionIsLetIn(t *testing.T) {
	db, group := pool(t, dsn(t)), unique+t.Name()
	do(t, db, `SELECT eskit_lease.group_create($1, 2)`, group)
	t.Cleanup(func() { do(t, db, `SELECT eskit_lease.group_drop($1)`, group) })
	config, err := pgx.ParseConfig(dsn(t))
	if err != nil {
		t.Fatal(err)
	}
	config.RuntimeParams["application_name"] = unique
	var refuses atomic.Bool
	var refused atomic.Int32
	l := open(t, lease.WithConnect(func(ctx context.Context) (*pgx.Conn, error) {
		if refuses.Load() {
			refused.Add(1)
			return nil, &pgconn.PgError{Severity: "FATAL", Code: "42501", Message: "permission denied for database"}
		}
		return pgx.ConnectConfig(ctx, config)
	}))
	var owned [2]atomic.Int32
	ended := make(chan error, 2)
	join := func(who int, l *lease.Leases) {
		ended <- l.Join(t.Context(), group, func(ctx context.Context, _ *lease.Partition) error {
			defer owned[who].Add(-1)
			owned[who].Add(1)
			<-ctx.Done()
			return nil
		})
	}
	go join(0, l)
	eventually(t, "one owns all", func() bool { return owned[0].Load() == 2 })
	refuses.Store(true)
	do(t, db, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE application_name = $1 AND query NOT LIKE '%session_wait%'`, unique)
	go join(1, open(t))
	eventually(t, "it looks", func() bool { return refused.Load() > 1 })
	refuses.Store(false)
	eventually(t, "they share", func() bool { return owned[0].Load() == 1 && owned[1].Load() == 1 })
	if len(ended) > 0 {
		t.Error(<-ended)
	}
}
