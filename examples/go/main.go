// A competing consumer, on the library for Go: it applies the events of its partitions to a ledger.
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"os"
	"syscall"
	"time"

	"eskit.dev/lease"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	read = `SELECT coalesce(max(position), $2) FROM (SELECT position FROM events WHERE partition = $1 AND position > $2
		AND position < eskit_lease.position_horizon() ORDER BY position LIMIT 50) AS batch`
	write = `INSERT INTO ledger (position, account, cents, consumer) SELECT position, account, cents, $4 FROM events
		WHERE partition = $1 AND position > $2 AND position <= $3 ORDER BY position`
)

var (
	name  = cmp.Or(os.Getenv("CONSUMER"), fmt.Sprintf("go-%s-%d", must(os.Hostname()), os.Getpid()))
	group = cmp.Or(os.Getenv("CONSUMER_GROUP"), "ledger")
	ttl   = must(time.ParseDuration(cmp.Or(os.Getenv("TTL"), "10") + "s"))
)

// apply applies the next events of a partition, and moves its position; it has not moved if there is no event.
func apply(ctx context.Context, p *lease.Partition, tx pgx.Tx) (moved bool, err error) {
	var to int64
	from, err := p.Position(ctx, tx)
	if err == nil {
		err = tx.QueryRow(ctx, read, p.Number, from).Scan(&to)
	}
	if err == nil {
		moved, err = p.Commit(ctx, tx, to, from)
	}
	if moved {
		_, err = tx.Exec(ctx, write, p.Number, from, to, name)
	}
	return moved, err
}

func main() {
	ctx, url := context.Background(), os.Getenv("DATABASE_URL")
	config := must(pgxpool.ParseConfig(url))
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // prepares nothing under a name: for poolers
	db := must(pgxpool.NewWithConfig(ctx, config))
	leases := must(lease.Open(ctx, url, lease.WithName(name), lease.WithTakeover(), lease.WithTTL(ttl),
		lease.WithWatch("events")))
	leases.DrainOn(ttl, syscall.SIGTERM)
	err := leases.Join(ctx, group, func(ctx context.Context, p *lease.Partition) error {
		for {
			moved := false
			batch, cancel := context.WithTimeout(ctx, ttl) // else a silent network would hold it for hours
			err := p.Transaction(batch, db, func(tx pgx.Tx) (err error) {
				moved, err = apply(batch, p, tx)
				return err
			})
			cancel()
			if err == nil && !moved {
				err = p.News(ctx)
			}
			if err != nil {
				return err // the partition comes back under a new fence
			}
		}
	})
	leases.Close()
	must(0, err)
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
