import { setTimeout as sleep } from "node:timers/promises";
import { Lost, Refused, sqlstate, textOf, Unsure } from "./errors.js";
import type { Keeper } from "./keeper.js";
import { Scope } from "./scope.js";
import { check, type Queryable } from "./transaction.js";
import type { Bell } from "./wait.js";

const JOIN = "SELECT eskit_lease.group_join($1::text, $2::uuid)";
const ASSIGNMENT = "SELECT partition, fence::text, state FROM eskit_lease.group_assignment($1::text, $2::uuid)";
const RELEASE = "SELECT eskit_lease.group_release($1::text, $2::int, $3::bigint)";
const LEAVE = "SELECT eskit_lease.group_leave($1::text, $2::uuid)";
const POSITION = "SELECT eskit_lease.cursor_position($1::text, $2::int)::text AS position";
const COMMIT = "SELECT eskit_lease.cursor_commit($1::text, $2::int, $3::bigint, $4::bigint, $5::bigint) AS moved";
const PAUSE = 1_000;
const [SHORTEST_PAUSE, LONGEST_PAUSE] = [100, 10_000];

/** A partition of a group (`name`), which the process owns under a fence. */
export class Partition extends Scope {
  /** @internal */
  constructor(
    keeper: Keeper,
    group: string,
    readonly partition: number,
    fence: bigint,
    session: string,
  ) {
    super(keeper, group, fence, session);
  }

  /** Returns the partition's cursor: the position up to which all is done. */
  async position(tx: Queryable): Promise<bigint> {
    return BigInt((await check<{ position: string }>(tx, POSITION, [this.name, this.partition])).position);
  }

  /** Checks the fence, and moves the cursor from `expected` to `position` in your transaction. False if it is there
   * already: apply nothing. Throws as `guard` does; Refused if the cursor is elsewhere. */
  async commit(tx: Queryable, position: bigint | string, expected: bigint | string): Promise<boolean> {
    // A transaction that began before the partition moves may still commit.
    const mayCommit = this.trusted || (this.signal.aborted && !this.cut.aborted);
    if (!mayCommit) throw new Lost("the scope has ended", this.signal.reason);
    const values = [this.name, this.partition, position, this.fence, expected];
    return (await this.check<{ moved: boolean }>(tx, COMMIT, values)).moved;
  }
}

export type PartitionWork = (partition: Partition) => Promise<unknown>;
type Row = { partition: number; fence: string; state: "owned" | "revoking" };

/** Runs `work` for each partition that the session owns. */
class Membership {
  readonly #running = new Map<number, Partition>();
  readonly #pauses = new Map<number, number>(); // the last one of each partition
  #joined: string | undefined; // the session that is a member
  #asked: string | undefined; // the session that may be one

  constructor(
    readonly keeper: Keeper,
    readonly group: string,
    readonly work: PartitionWork,
    readonly bell: Bell,
    readonly signal: AbortSignal | undefined,
  ) {}

  /** Makes what runs equal to what the session owns now. */
  async follow(session: string): Promise<undefined> {
    const before = new Set(this.#running.keys()); // what ends meanwhile may be listed as it was
    const rows = await this.#assignment(session);
    const owned = new Map(rows.filter((row) => row.state === "owned").map((row) => [row.partition, row.fence]));
    for (const [partition, scope] of this.#running)
      if (owned.get(partition) !== String(scope.fence)) scope.cancel(new Lost("the partition moves"), true);
    for (const { partition, fence, state } of rows) {
      if (before.has(partition)) continue;
      const isSpent = this.keeper.spent.has(BigInt(fence)); // its release was refused
      if (isSpent) this.bell.ringIn(PAUSE);
      if (isSpent || state === "revoking") await this.#release(session, partition, fence);
      if (isSpent) owned.delete(partition);
    }
    for (const [partition, fence] of owned)
      if (!before.has(partition) && this.keeper.trusts(session))
        this.#run(new Partition(this.keeper, this.group, partition, BigInt(fence), session));
  }

  /** Waits for the work to end, and leaves the group. */
  async end(): Promise<void> {
    for (const scope of this.#running.values()) scope.cancel(new Lost("the group is left"), true);
    while (this.#running.size > 0) await this.bell.after(this.bell.count);
    if (this.#asked && !this.keeper.stopping.signal.aborted)
      await this.keeper.returns(this.#asked, LEAVE, [this.group, this.#asked]);
  }

  async #assignment(session: string): Promise<Row[]> {
    const { keeper, group, signal } = this;
    this.#asked = session;
    if (this.#joined !== session) await keeper.call(session, JOIN, [group, session]);
    this.#joined = session;
    return keeper.call<Row>(session, ASSIGNMENT, [group, session], { signal }).catch((error) => {
      if (sqlstate(error) === "55000") this.#joined = undefined; // was put out: join again
      throw error;
    });
  }

  /** Runs the work of a partition until it ends. Then gives the partition back, so that it begins anew. */
  async #run(scope: Partition): Promise<void> {
    this.#running.set(scope.partition, scope);
    const began = performance.now();
    const ended = () => "its work has ended";
    const error: unknown = await this.work(scope).then(ended, (thrown) => thrown);
    const isTold = scope.signal.aborted || this.signal?.aborted || this.keeper.stopping.signal.aborted;
    if (!isTold && !(error instanceof Refused) && !(error instanceof Unsure)) {
      const ran = performance.now() - began;
      this.keeper.warn(`partition ${scope.partition} of ${this.group} begins anew: ${textOf(error)}`);
      await sleep(this.#nextPause(scope.partition, ran), undefined, { signal: scope.signal }).catch(() => {});
    }
    await scope.end();
    await this.#release(scope.session, scope.partition, scope.fence);
    this.#running.delete(scope.partition);
    this.bell.ring();
  }

  #nextPause(partition: number, ran: number): number {
    const last = ran < LONGEST_PAUSE ? (this.#pauses.get(partition) ?? 0) : 0;
    const pause = Math.max(SHORTEST_PAUSE, Math.min(2 * last, LONGEST_PAUSE));
    this.#pauses.set(partition, pause);
    return pause;
  }

  async #release(session: string, partition: number, fence: bigint | string): Promise<void> {
    const isReleased = await this.keeper.returns(session, RELEASE, [this.group, partition, fence]);
    if (!isReleased) this.keeper.spent.add(BigInt(fence));
  }
}

export async function join(keeper: Keeper, group: string, work: PartitionWork, signal?: AbortSignal): Promise<void> {
  await keeper.verb(`join ${group}`, signal, async (bell) => {
    const membership = new Membership(keeper, group, async (partition) => work(partition), bell, signal);
    await keeper.follow(bell, signal, (session) => membership.follow(session)).finally(() => membership.end());
  });
}
