import { cancelled } from "./errors.js";
import { join, type PartitionWork } from "./group.js";
import { Keeper } from "./keeper.js";
import { type Lead, lead } from "./lead.js";
import { type Once, type OnceOptions, type OnceWork, once } from "./once.js";
import { type Handler, type WorkOptions, work } from "./work.js";

export type { State } from "./core.js";
export { Closed, LeaseError, Lost, Refused, Unsure } from "./errors.js";
export type { Partition, PartitionWork } from "./group.js";
export type { Settings } from "./keeper.js";
export type { Lead } from "./lead.js";
export type { Connection } from "./line.js";
export type { Execution, Once, OnceOptions, OnceWork } from "./once.js";
export type { Scope } from "./scope.js";
export type { Pool, Queryable } from "./transaction.js";
export type { Handler, Item, WorkOptions } from "./work.js";

/** `signal` stops the waiting, which then rejects with the signal's reason. */
export type Waiting = { signal?: AbortSignal };

/** The keeper of a process: one session, and the verbs on it. Open it before their first use; close or drain it. */
export class Leases extends Keeper {
  /** Waits for leadership. With `work`, runs it while it leads, and releases the lease at its end. What it throws after
   * the scope was cancelled becomes Lost. */
  lead(name: string, options?: Waiting): Promise<Lead>;
  lead<T>(name: string, work: (lead: Lead) => Promise<T>, options?: Waiting): Promise<T>;
  async lead<T>(
    name: string,
    given: Waiting | ((lead: Lead) => Promise<T>) = {},
    options?: Waiting,
  ): Promise<Lead | T> {
    const isBlock = typeof given === "function";
    const scope = (await lead(this, name, true, (isBlock ? options : given)?.signal)) as Lead;
    if (!isBlock) return scope;
    try {
      return await given(scope);
    } catch (error) {
      throw scope.signal.aborted ? cancelled(error) : error;
    } finally {
      await scope.release();
    }
  }

  /** Leads at once, or resolves to undefined if others lead or wait. */
  tryLead(name: string, options: Waiting = {}): Promise<Lead | undefined> {
    return lead(this, name, false, options.signal);
  }

  /** Joins a group, and runs `work` for each partition that the process owns, until the keeper drains, or `signal`.
   * Work that ends by itself or by an error begins anew, under a new fence. */
  join(group: string, work: PartitionWork, options: Waiting = {}): Promise<void> {
    return join(this, group, work, options.signal);
  }

  /** Claims items, and runs `handler` for each in a transaction that also finishes the item, until the keeper drains,
   * or `signal`. An item whose handler throws is tried again as its queue says. */
  work(queue: string, handler: Handler, options: WorkOptions): Promise<void> {
    return work(this, queue, handler, options);
  }

  /** Runs `work` once for a run-once key, and keeps its result as JSON; or tells what became of the key. An error of
   * `work` marks the key as failed, and is thrown. */
  once<T>(key: string, work: OnceWork<T>, options: OnceOptions = {}): Promise<Once<T>> {
    return once(this, key, work, options);
  }
}
