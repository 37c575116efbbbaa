import { join, type PartitionWork } from "./group.js";
import { Keeper } from "./keeper.js";
import { type Lead, lead } from "./lead.js";
import { type Once, type OnceOptions, type OnceWork, once } from "./once.js";
import { type Handler, type WorkOptions, work } from "./work.js";

export type { State } from "./core.js";
export { Closed, Lost, Refused, Unsure } from "./errors.js";
export type { Partition } from "./group.js";
export type { Settings } from "./keeper.js";
export type { Connection } from "./line.js";
export type { Scope } from "./scope.js";
export type { Pool, Queryable } from "./transaction.js";
export type { Handler, Item, WorkOptions } from "./work.js";
export type { Lead, Once, OnceOptions, PartitionWork };

/** `signal` stops the waiting, which then rejects with the signal's reason. */
export type Waiting = { signal?: AbortSignal };

/** The keeper of a process: one session, and the verbs on it. Open it before their first use; close or drain it. */
export class Leases extends Keeper {
  /** Waits for leadership. With `work`, runs it while it leads, and releases the lease at its end. */
  lead(name: string, options?: Waiting): Promise<Lead>;
  lead<T>(name: string, work: (lead: Lead) => Promise<T>, options?: Waiting): Promise<T>;
  async lead<T>(
    name: string,
    given: Waiting | ((lead: Lead) => Promise<T>) = {},
    options?: Waiting,
  ): Promise<Lead | T> {
    if (typeof given !== "function") return (await lead(this, name, true, given.signal)) as Lead;
    await using scope = (await lead(this, name, true, options?.signal)) as Lead;
    return await given(scope);
  }

  /** Leads at once, or resolves to undefined if others lead or wait. */
  tryLead(name: string, options: Waiting = {}): Promise<Lead | undefined> {
    return lead(this, name, false, options.signal);
  }

  /** Joins a group, and runs `work` for each partition that the process owns, until the keeper drains, or `signal`. Work
   * that ends by itself or by an error begins anew, under a new fence. */
  join(group: string, work: PartitionWork, options: Waiting = {}): Promise<void> {
    return join(this, group, work, options.signal);
  }

  /** Claims items, and runs `handler` for each in a transaction that also finishes the item, until the keeper drains, or
   * `signal`. An item whose handler throws is tried again as its queue says. */
  work(queue: string, handler: Handler, options: WorkOptions): Promise<void> {
    return work(this, queue, handler, options);
  }

  /** Runs `work` once for a run-once key, and keeps its result as JSON; or tells what became of the key. An error of
   * `work` marks the key as failed, and is thrown. */
  once<T>(key: string, work: OnceWork<T>, options: OnceOptions = {}): Promise<Once<T>> {
    return once(this, key, work, options);
  }
}
