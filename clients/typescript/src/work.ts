import { setTimeout as sleep } from "node:timers/promises";
import type { PoolClient } from "pg";
import { isBroken, Lost, textOf } from "./errors.js";
import type { Keeper } from "./keeper.js";
import { Scope } from "./scope.js";
import { check, type Pool, transact } from "./transaction.js";
import type { Bell } from "./wait.js";

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

/** Claims items while handlers are free, and runs each. */
class Workers {
  readonly #inHand = new Set<string>(); // ids
  readonly #waiting = new Set<Scope>(); // for a connection
  #straysUntil = 0; // a claim without an answer may be committed until then

  constructor(
    readonly keeper: Keeper,
    readonly queue: string,
    readonly handler: Handler,
    readonly options: WorkOptions,
    readonly bell: Bell,
  ) {}

  /** Claims as many items as there are free handlers. */
  async follow(session: string): Promise<undefined> {
    const { keeper, queue, bell } = this;
    if (performance.now() < this.#straysUntil) await this.#returnStrays(session);
    const free = Math.min((this.options.concurrency ?? 1) - this.#inHand.size, MOST);
    if (free === 0) return;
    const claim = keeper.call<Row>(session, CLAIM, [queue, session, free], { once: true });
    const rows = await claim.catch((error) => {
      if (!isBroken(error)) throw error;
      this.#straysUntil = performance.now() + keeper.ttl;
      bell.ringIn(PAUSE);
      return [];
    });
    for (const row of rows) this.#run(row, session);
  }

  /** Gives back what has not begun, and waits for the rest. */
  async end(): Promise<void> {
    for (const scope of this.#waiting) scope.cancel(new Lost("the work stops"));
    while (this.#inHand.size > 0) await this.bell.after(this.bell.count);
  }

  async #returnStrays(session: string): Promise<void> {
    const { signal } = this.options;
    this.bell.ringIn(PAUSE);
    for (const { id, fence } of await this.keeper.call<Row>(session, CLAIMED, [this.queue, session], { signal }))
      if (!this.#inHand.has(id)) await this.keeper.returns(session, UNCLAIM, [id, fence]);
  }

  async #run(row: Row, session: string): Promise<void> {
    this.#inHand.add(row.id);
    const scope = new Scope(this.keeper, this.queue, BigInt(row.fence), session);
    this.#waiting.add(scope);
    const begin = async () => {
      if (!scope.trusted) throw new Lost("the trust is over");
      this.#waiting.delete(scope);
    };
    const handle = async (tx: PoolClient) => {
      await this.handler({ ...row, id: BigInt(row.id), fence: scope.fence, signal: scope.signal }, tx);
      await check(tx, DONE, [row.id, row.fence]);
    };
    await transact(scope, this.options.pool, begin, handle).catch(async (error) => {
      this.keeper.warn(`item ${row.id} of ${this.queue}: ${textOf(error)}`);
      if (!this.#waiting.has(scope)) return this.keeper.fails(session, FAIL, [row.id, row.fence], error);
      await sleep(PAUSE, undefined, { signal: scope.signal }).catch(() => {});
      return this.keeper.returns(session, UNCLAIM, [row.id, row.fence]);
    });
    this.#waiting.delete(scope);
    await scope.end();
    this.#inHand.delete(row.id);
    this.bell.ring();
  }
}

export async function work(keeper: Keeper, queue: string, handler: Handler, options: WorkOptions): Promise<void> {
  await keeper.verb(`work ${queue}`, options.signal, async (bell) => {
    const workers = new Workers(keeper, queue, handler, options, bell);
    await keeper.follow(bell, options.signal, (session) => workers.follow(session)).finally(() => workers.end());
  });
}
