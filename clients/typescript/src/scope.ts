import { Lost, Refused, Unsure } from "./errors.js";
import type { Keeper } from "./keeper.js";
import { check, type Pool, type Queryable, transact, type Work } from "./transaction.js";

const CHECK = "SELECT eskit_lease.fence_check($1::text, $2::bigint)";

/** What the keeper hands out under a fence, for as long as its session is trusted. Cancelled, it never lives again. */
export class Scope {
  /** @internal */ readonly running = new Set<Promise<unknown>>();
  readonly #cancelled = new AbortController();
  readonly #cut = new AbortController(); // what has begun must not finish either
  #seen: number;
  #isOver = false;

  /** @internal */
  constructor(
    protected readonly keeper: Keeper,
    readonly name: string,
    readonly fence: bigint,
    readonly session: string,
    protected readonly bell = keeper.bell(),
  ) {
    this.#seen = bell.count;
    keeper.scopes.add(this);
  }

  /** Aborted when the scope is cancelled: stop at once. The reason is a Lost, Refused or Unsure. */
  get signal(): AbortSignal {
    return this.#cancelled.signal;
  }
  /** Aborted when the keeper drains: finish what has begun. */
  get draining(): AbortSignal {
    return this.keeper.stopping.signal;
  }
  /** Whether work may begin now. Looks at the clock. */
  get trusted(): boolean {
    return !this.#isOver && this.keeper.trusts(this.session) && !this.signal.aborted;
  }
  /** @internal Aborted when the connections of its transactions are to end. */
  get cut(): AbortSignal {
    return this.#cut.signal;
  }
  /** @internal */
  get patience(): number {
    return this.keeper.ttl / 2;
  }

  /** Checks the fence in your transaction, which must have begun, before it reads the data. Throws Lost, Refused, or
   * TypeError for a connection in no transaction. */
  async guard(tx: Queryable): Promise<void> {
    this.#requireTrust();
    await this.check(tx, CHECK, [this.name, this.fence]);
  }

  /** Runs `work` between BEGIN with `guard` and COMMIT. Throws Lost, Refused, Unsure, or the error of `work`. */
  async transaction<T>(pool: Pool, work: Work<T>): Promise<T> {
    this.#requireTrust();
    const running = transact(this, pool, (tx) => this.guard(tx), work);
    this.running.add(running);
    return running.finally(() => this.running.delete(running));
  }

  /** Ends the scope after a COMMIT of your own without an answer, so that the next one has a new fence. */
  unsure(): void {
    this.cancel(new Unsure("a transaction may still commit"));
  }

  /** Resolves when there was news since the scope began or this resolved last: rows in the table to watch, or a change
   * of what the session has. Resolves as well when the scope is cancelled, or told to drain. */
  async news(signal?: AbortSignal): Promise<void> {
    if (!this.signal.aborted) await this.bell.after(this.#seen, signal);
    this.#seen = this.bell.count;
  }

  /** Makes a call that checks the fence. A fence that is refused (LF001) stays so: the scope is over. */
  protected async check<Row>(tx: Queryable, text: string, values: unknown[]): Promise<Row> {
    return check<Row>(tx, text, values).catch((error) => {
      if (error instanceof Refused && error.code === "LF001") this.cancel(error);
      throw error;
    });
  }

  #requireTrust(): void {
    if (!this.trusted) throw new Lost("the scope has ended", this.signal.reason);
  }

  /** @internal `mayFinish`: a transaction that has begun may still commit, until this is called without it. */
  cancel(why: Error, mayFinish = false): void {
    this.#cancelled.abort(why);
    if (!mayFinish) this.#cut.abort(why);
    this.bell.ring();
  }

  /** @internal Ends the scope, once its transactions have. */
  async end(): Promise<void> {
    this.#isOver = true;
    await Promise.allSettled(this.running);
    this.keeper.scopes.delete(this);
    this.keeper.bells.delete(this.bell);
  }
}
