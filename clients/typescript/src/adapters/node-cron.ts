import type { Leases } from "../index.js";
import { turnOf } from "../once.js";

/** What `setRunCoordinator` and a task's `runCoordinator` take. */
export interface RunCoordinator {
  /** Resolves to whether this process runs the fire. Throws if it cannot be known: node-cron then skips the fire. */
  shouldRun(key: string, ttlMs?: number): Promise<boolean>;
  /** Throws if the run's session ended meanwhile: the key is in doubt then. */
  onComplete(key: string): Promise<void>;
}

export interface CoordinatorOptions {
  /** Stands before node-cron's key (the task's name and the fire time) in the run-once key. Default: "node-cron:". */
  prefix?: string;
  /** After how many ms without the database a fire is skipped (`coordinator-error`). Default: 5 000. */
  patience?: number;
}

/** Makes a coordinator that runs each fire time of a `distributed` task on one process. A fire time is a run-once key,
 * which the run holds until it completes. A key outlives its run, so a late process with a slow clock does not run the
 * fire again. If the process of a run is killed, its key stays in doubt, and the next fire time is open to all. */
export function runCoordinator(leases: Leases, options: CoordinatorOptions = {}): RunCoordinator {
  const { prefix = "node-cron:", patience = 5_000 } = options;
  const runs = new Map<string, { complete(): void; kept: Promise<unknown> }>();

  return {
    async shouldRun(key) {
      if (leases.turns.has(turnOf(prefix + key))) return false; // another task of this name in this process has asked
      return new Promise((resolve, reject) => {
        let complete = () => {};
        const completed = new Promise<void>((done) => {
          complete = done;
        });
        const run = () => {
          resolve(true);
          return completed;
        };
        const kept = leases.once(prefix + key, run, { signal: AbortSignal.timeout(patience) });
        runs.set(key, { complete, kept });
        kept.then(() => resolve(false), reject).finally(() => runs.delete(key)); // true was first, if it ran here
      });
    },

    async onComplete(key) {
      const run = runs.get(key);
      run?.complete();
      await run?.kept;
    },
  };
}
