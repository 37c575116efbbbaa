// `guard` and `commit` in transactions of other libraries.
import assert from "node:assert/strict";
import { after } from "node:test";
import { sql } from "drizzle-orm";
import { drizzle } from "drizzle-orm/node-postgres";
import { CompiledQuery, Kysely, PostgresDialect } from "kysely";
import pg from "pg";
import { type Partition, type Queryable, Refused } from "../src/index.js";
import { live, open, run, url } from "./support.js";

const pool = new pg.Pool({ connectionString: url, max: 4 });
const kysely = new Kysely<object>({ dialect: new PostgresDialect({ pool }) });
after(() => kysely.destroy()); // ends the pool

type InTransaction = (work: (tx: Queryable) => Promise<unknown>) => Promise<unknown>;
/** For each library: a transaction of it, and its connection in none. */
const libraries: Record<string, { transaction: InTransaction; autocommit: InTransaction }> = {
  "a Client of node-postgres": {
    transaction: async (work) => {
      const client = new pg.Client(url);
      await client.connect();
      try {
        await client.query("BEGIN");
        await work(client);
        await client.query("COMMIT");
      } finally {
        await client.end();
      }
    },
    autocommit: async (work) => {
      const client = new pg.Client(url);
      await client.connect();
      await work(client).finally(() => client.end());
    },
  },
  "a PoolClient of node-postgres": {
    transaction: async (work) => {
      const client = await pool.connect();
      try {
        await client.query("BEGIN");
        await work(client);
        await client.query("COMMIT");
      } catch (error) {
        await client.query("ROLLBACK");
        throw error;
      } finally {
        client.release();
      }
    },
    autocommit: async (work) => {
      const client = await pool.connect();
      await work(client).finally(() => client.release());
    },
  },
  Kysely: {
    transaction: (work) =>
      kysely
        .transaction()
        .execute((tx) => work({ query: (text, values) => tx.executeQuery(CompiledQuery.raw(text, values)) })),
    autocommit: (work) =>
      kysely
        .connection()
        .execute((db) => work({ query: (text, values) => db.executeQuery(CompiledQuery.raw(text, values)) })),
  },
  Drizzle: {
    transaction: async (work) => {
      const client = await pool.connect();
      const transaction = drizzle({ client }).transaction(async (tx) => {
        await work(client);
        await tx.execute(sql`SELECT 1`);
      });
      await transaction.finally(() => client.release());
    },
    autocommit: async (work) => {
      const client = await pool.connect();
      await work(drizzle({ client }).$client).finally(() => client.release());
    },
  },
};

for (const [library, { transaction, autocommit }] of Object.entries(libraries)) {
  live(`guard and commit in a transaction of ${library}`, async () => {
    await using leases = await open();
    const name = `${run}:${library}`;
    await using lead = await leases.lead(name);
    await transaction((tx) => lead.guard(tx));
    await assert.rejects(
      autocommit((tx) => lead.guard(tx)),
      TypeError,
    );

    await pool.query("SELECT eskit_lease.group_create($1, 1)", [`${name}:group`]);
    const stop = new AbortController();
    const moved: unknown[] = [];
    await leases.join(
      `${name}:group`,
      async (partition: Partition) => {
        await transaction(async (tx) => {
          const start = await partition.position(tx);
          moved.push(start, await partition.commit(tx, 5n, start), await partition.commit(tx, 5n, start));
        });
        await assert.rejects(
          transaction((tx) => partition.commit(tx, 9n, 7n)),
          Refused,
        );
        await assert.rejects(
          autocommit((tx) => partition.commit(tx, 6n, 5n)),
          TypeError,
        );
        stop.abort();
      },
      { signal: stop.signal },
    );
    assert.deepEqual(moved, [0n, true, false]);
    const position = "SELECT eskit_lease.cursor_position($1, 0) AS position";
    assert.equal((await pool.query(position, [`${name}:group`])).rows[0].position, "5");
  });
}

live("Drizzle works in the transaction of a scope", async () => {
  await using leases = await open();
  await using lead = await leases.lead(`${run}:drizzle`);
  const write = async (tx: pg.PoolClient) => (await drizzle({ client: tx }).execute(sql`SELECT ${1}::int AS n`)).rows;
  assert.deepEqual(await lead.transaction(pool, write), [{ n: 1 }]);
});
