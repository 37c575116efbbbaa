import { setTimeout as sleep } from "node:timers/promises";
import { Lost, Refused, sqlstate, Unsure } from "./errors.js";
import type { Keeper } from "./keeper.js";
import { settled } from "./lead.js";
import { Scope } from "./scope.js";
import { check, type Queryable } from "./transaction.js";

const JOIN = "SELECT eskit_lease.group_join($1::text, $2::uuid)";
const ASSIGNMENT = "SELECT partition, fence::text, state FROM eskit_lease.group_assignment($1::text, $2::uuid)";
const RELEASE = "SELECT eskit_lease.group_release($1::text, $2::int, $3::bigint)";
const LEAVE = "SELECT eskit_lease.group_leave($1::text, $2::uuid)";
const POSITION = "SELECT eskit_lease.cursor_position($1::text, $2::int)::text AS position";
const COMMIT = "SELECT eskit_lease.cursor_commit($1::text, $2::int, $3::bigint, $4::bigint, $5::bigint) AS moved";
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
    if (!this.trusted && !this.mayFinish) throw new Lost("the scope has ended", this.signal.reason);
    const values = [this.name, this.partition, position, this.fence, expected];
    return (await check<{ moved: boolean }>(tx, COMMIT, values)).moved;
  }
}

export type PartitionWork = (partition: Partition) => Promise<unknown>;

export async function join(keeper: Keeper, group: string, work: PartitionWork, signal?: AbortSignal): Promise<void> {
  await keeper.verb(`join ${group}`, signal, async (bell) => {
    const running = new Map<number, Partition>();
    const pauses = new Map<number, number>();
    let joined: string | undefined;

    const release = async (session: string, partition: number, fence: bigint | string) => {
      const released = settled(keeper.call(session, RELEASE, [group, partition, fence]));
      await released.catch((error) => keeper.warn(String(error)));
    };
    const run = async (scope: Partition) => {
      const { partition, session, fence } = scope;
      const began = performance.now();
      let error: unknown = "its work has ended";
      try {
        await work(scope);
      } catch (thrown) {
        error = thrown;
      }
      const isTold = scope.signal.aborted || signal?.aborted || keeper.stopping.signal.aborted;
      if (!isTold && !(error instanceof Refused) && !(error instanceof Unsure)) {
        const last = performance.now() < began + LONGEST_PAUSE ? (pauses.get(partition) ?? 0) : 0;
        pauses.set(partition, Math.max(SHORTEST_PAUSE, Math.min(2 * last, LONGEST_PAUSE)));
        keeper.warn(`partition ${partition} of ${group} begins anew: ${error}`);
        await sleep(pauses.get(partition), undefined, { signal: scope.signal }).catch(() => {});
      }
      await scope.end();
      await release(session, partition, fence);
      running.delete(partition);
      bell.ring();
    };

    const followed = keeper.follow(bell, signal, async (session) => {
      if (joined !== session) await keeper.call(session, JOIN, [group, session], false, signal);
      joined = session;
      type Row = { partition: number; fence: string; state: string };
      const assigned = keeper.call<Row>(session, ASSIGNMENT, [group, session], false, signal);
      const rows = await assigned.catch((error) => {
        if (sqlstate(error) === "55000") joined = undefined; // no member any more: join again
        throw error;
      });
      const owned = new Map(rows.filter((row) => row.state === "owned").map((row) => [row.partition, row.fence]));
      for (const [partition, scope] of running)
        if (owned.get(partition) !== String(scope.fence)) scope.cancel(new Lost("the partition moves"), true);
      for (const { partition, fence, state } of rows)
        if (state === "revoking" && !running.has(partition)) await release(session, partition, fence);
      for (const [partition, fence] of owned) {
        if (running.has(partition) || !keeper.trusts(session)) continue;
        const scope = new Partition(keeper, group, partition, BigInt(fence), session);
        running.set(partition, scope);
        run(scope);
      }
    });
    await followed.finally(async () => {
      for (const scope of running.values()) scope.cancel(new Lost("the group is left"), true);
      while (running.size > 0) await bell.after(bell.count);
      if (joined && !keeper.stopping.signal.aborted) await settled(keeper.call(joined, LEAVE, [group, joined]));
    });
  });
}
