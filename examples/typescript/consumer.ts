// A competing consumer, with node-postgres: applies the events of its partitions. ../README.md explains the steps.
import { hostname } from "node:os";
import { Leases } from "eskit-lease";
import pg from "pg";

const { DATABASE_URL, CONSUMER_GROUP = "ledger", TTL = "10" } = process.env;
const name = process.env.CONSUMER ?? `typescript-${hostname()}-${process.pid}`;
const ttl = Number(TTL) * 1000;

const READ = `SELECT position, account, cents FROM events
              WHERE partition = $1 AND position > $2 AND position < eskit_lease.position_horizon()
              ORDER BY position LIMIT 50`;
const APPLY = "INSERT INTO ledger (position, account, cents, consumer) VALUES ($1, $2, $3, $4)";
type Event = { position: string; account: string; cents: string }; // strings, as a number cannot hold every bigint

const patience = { connectionTimeoutMillis: ttl, query_timeout: ttl }; // by default both wait without end
const pool = new pg.Pool({ connectionString: DATABASE_URL, ...patience });
pool.on("error", () => {}); // an idle connection was lost: the pool opens another when one is needed

const leases = new Leases(DATABASE_URL, { name, ttl, takeover: true, watch: "events" });
await leases.open();
leases.drainOnSignals();
await leases.join(CONSUMER_GROUP, async (partition) => {
  while (!partition.signal.aborted) {
    const found = await partition.transaction(pool, async (tx) => {
      const done = await partition.position(tx);
      const { rows: events } = await tx.query<Event>(READ, [partition.partition, done]);
      const last = events.at(-1);
      if (last && (await partition.commit(tx, last.position, done)))
        for (const { position, account, cents } of events) await tx.query(APPLY, [position, account, cents, name]);
      return events.length > 0;
    });
    if (!found) await partition.news(); // until there are events to read, or the partition moves
  }
}); // until SIGTERM
await leases.drain();
process.exit(); // without a goodbye to each connection of the pool, which a silent network would never answer
