import { setTimeout as sleep } from "node:timers/promises";
import type { PoolClient } from "pg";
import { isBroken, Lost, sqlstate } from "./errors.js";
import type { Keeper } from "./keeper.js";
import { settled } from "./lead.js";
import { Scope } from "./scope.js";
import { check, type Pool, transact } from "./transaction.js";

const CLAIM = `SELECT id::text, key, payload, attempt, fence::text
  FROM eskit_lease.item_claim($1::text, $2::uuid, $3::int)`;
const CLAIMED = `SELECT id::text, fence::text FROM eskit_lease.items
  WHERE queue = $1::text AND session = $2::uuid AND state = 'claimed'`;
const DONE = "SELECT eskit_lease.item_done(ARRAY[$1::bigint], $2::bigint)";
const FAIL = "SELECT eskit_lease.item_fail($1::bigint, $2::bigint, $3::text)";
const UNCLAIM = "SELECT eskit_lease.item_unclaim(ARRAY[$1::bigint], $2::bigint)";
const PAUSE = 1_000;
const MOST = 1_000; // items of a claim

/** A work item. `attempt` counts from 1; `signal` is aborted if the session's trust ends. */
export type Item = {
  id: bigint;
  key: string | null;
  payload: unknown;
  attempt: number;
  fence: bigint;
  signal: AbortSignal;
};
export type Handler = (item: Item, tx: PoolClient) => Promise<unknown>;
export interface WorkOptions {
  /** Gives each item the connection of its transaction. */
  pool: Pool;
  /** How many items are handled at a time. Default: 1. */
  concurrency?: number;
  /** Stops: what has not begun is given back, what has begun may finish. */
  signal?: AbortSignal;
}
type Row = { id: string; key: string | null; payload: unknown; attempt: number; fence: string };

export async function work(keeper: Keeper, queue: string, handler: Handler, options: WorkOptions): Promise<void> {
  const { pool, concurrency = 1, signal } = options;
  await keeper.verb(`work ${queue}`, signal, async (bell) => {
    const inHand = new Set<string>();
    const waiting = new Set<Scope>(); // for a connection
    let straysUntil = 0; // a claim without an answer may be committed until then

    /** Ends a claim. LF001: it has ended already. */
    const end = async (session: string, text: string, values: unknown[]) => {
      await settled(keeper.call(session, text, values)).catch((error) => {
        if (sqlstate(error) !== "LF001") keeper.warn(String(error));
      });
    };
    const run = async (row: Row, session: string) => {
      const scope = new Scope(keeper, queue, BigInt(row.fence), session);
      waiting.add(scope);
      const begin = async () => {
        if (!scope.trusted) throw new Lost("the trust is over");
        waiting.delete(scope);
      };
      const item = { ...row, id: BigInt(row.id), fence: scope.fence, signal: scope.signal };
      const handle = async (tx: PoolClient) => {
        await handler(item, tx);
        await check(tx, DONE, [row.id, row.fence]);
      };
      await transact(scope, pool, begin, handle).catch(async (error) => {
        keeper.warn(`item ${row.id} of ${queue}: ${error}`);
        if (!waiting.has(scope)) return end(session, FAIL, [row.id, row.fence, String(error)]);
        await sleep(PAUSE, undefined, { signal: scope.signal }).catch(() => {});
        await end(session, UNCLAIM, [row.id, row.fence]);
      });
      waiting.delete(scope);
      await scope.end();
      inHand.delete(row.id);
      bell.ring();
    };

    const followed = keeper.follow(bell, signal, async (session) => {
      if (performance.now() < straysUntil) {
        bell.ringIn(PAUSE);
        for (const { id, fence } of await keeper.call<Row>(session, CLAIMED, [queue, session], false, signal))
          if (!inHand.has(id)) await end(session, UNCLAIM, [id, fence]);
      }
      const free = Math.min(concurrency - inHand.size, MOST);
      if (free === 0) return;
      const claim = keeper.call<Row>(session, CLAIM, [queue, session, free], true);
      const rows = await claim.catch((error) => {
        if (!isBroken(error)) throw error;
        straysUntil = performance.now() + keeper.ttl;
        bell.ringIn(PAUSE);
        return [];
      });
      for (const row of rows) {
        inHand.add(row.id);
        run(row, session);
      }
    });
    await followed.finally(async () => {
      for (const scope of waiting) scope.cancel(new Lost("the work stops"));
      while (inHand.size > 0) await bell.after(bell.count);
    });
  });
}
