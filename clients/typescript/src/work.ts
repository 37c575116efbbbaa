import { setTimeout as sleep } from "node:timers/promises";
import type { PoolClient } from "pg";
import { isBroken, LeaseError, Lost, NoConnection, sqlstate, textOf } from "./errors.js";
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
  #strays = { session: "", until: 0 }; // a claim without an answer may be committed until then

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
    await this.#returnStrays(session, this.options.signal);
    if (!keeper.trusts(session)) return;
    const free = Math.min((this.options.concurrency ?? 1) - this.#inHand.size, MOST);
    if (free === 0) return;
    const claim = keeper.call<Row>(session, CLAIM, [queue, session, free], { once: true });
    const rows = await claim.catch((error) => {
      if (error instanceof LeaseError || !isBroken(error)) throw error;
      if (!(error instanceof NoConnection)) this.#strays = { session, until: performance.now() + keeper.ttl };
      keeper.warn(`a claim has no answer: ${error.message}`);
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

  /** Gives back, also when the caller has gone, what a claim without an answer has brought. */
  async sweep(): Promise<void> {
    const { keeper, bell } = this;
    while (this.#hasStrays(keeper.session) && !keeper.stopping.signal.aborted) {
      const seen = bell.count;
      await this.#returnStrays(this.#strays.session);
      await bell.after(seen);
    }
  }

  #hasStrays(session: string | undefined): boolean {
    return session === this.#strays.session && performance.now() < this.#strays.until;
  }

  async #returnStrays(session: string, signal?: AbortSignal): Promise<void> {
    if (!this.#hasStrays(session)) return;
    const { keeper, queue, bell } = this;
    bell.ringIn(PAUSE);
    const claimed = await keeper.call<Row>(session, CLAIMED, [queue, session], { signal }).catch(async (error) => {
      if (sqlstate(error) !== "42501") throw error;
      await keeper.replace(session, "a claim has no answer, and without grant_monitor nothing tells what it took");
      return [];
    });
    for (const { id, fence } of claimed) if (!this.#inHand.has(id)) await keeper.returns(session, UNCLAIM, [id, fence]);
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

export function work(keeper: Keeper, queue: string, handler: Handler, options: WorkOptions): Promise<void> {
  return new Promise((resolve, reject) => {
    const run = async (bell: Bell) => {
      const workers = new Workers(keeper, queue, handler, options, bell);
      const worked = keeper.follow(bell, options.signal, (session) => workers.follow(session));
      await worked.finally(() => workers.end()).then(resolve, reject);
      await workers.sweep().catch((error) => keeper.warn(`could not be given back: ${textOf(error)}`));
    };
    keeper.verb(`work ${queue}`, options.signal, run).catch(reject);
  });
}
