import { LeaseError, Lost, NO_TEXT, translated, Unsure } from "./errors.js";
import type { Keeper } from "./keeper.js";
import { Scope } from "./scope.js";
import { abortable } from "./wait.js";

const BEGIN = `SELECT state, fence::text, result
  FROM eskit_lease.execution_begin($1::text, $2::uuid, retry_in_doubt => $3::boolean)`;
const FINISH = "SELECT eskit_lease.execution_finish($1::text, $2::bigint, $3::jsonb)";
const FAIL = "SELECT eskit_lease.execution_fail($1::text, $2::bigint, $3::text, retry => $4::boolean)";

type State = "running" | "done" | "failed" | "in_doubt";
/** What became of a run-once key. `first`: this call ran it. `in_doubt`: the process that ran it has ended. */
export type Once<T> = { first: boolean; state: State; result: T | null };
export interface OnceOptions {
  /** Whether a key in doubt is run again: at least once, instead of at most once. Default: false. */
  retryInDoubt?: boolean;
  /** Stops waiting. A function that has begun goes on. */
  signal?: AbortSignal;
}
export type Execution = Pick<Scope, "name" | "fence" | "session" | "signal" | "draining" | "trusted">;
export type OnceWork<T> = (execution: Execution) => Promise<T>;

/** The name of the turns that the calls for a key take within a process. */
export const turnOf = (key: string) => `once ${key}`;

export function once<T>(keeper: Keeper, key: string, run: OnceWork<T>, options: OnceOptions): Promise<Once<T>> {
  const { retryInDoubt = false, signal } = options;
  const stopped = new AbortController(); // follows `signal` until the function begins
  const stop = () => stopped.abort(signal?.reason);
  signal?.addEventListener("abort", stop);
  const told = keeper.verb(turnOf(key), signal, async (bell): Promise<Once<T>> => {
    const { state, result, scope } = await keeper.asks(bell, signal, async (session) => {
      type Row = { state: State; result: T | null; fence: string | null };
      const begin = keeper.call<Row>(session, BEGIN, [key, session, retryInDoubt]);
      const { fence, ...row } = (await begin)[0] as Row;
      if (fence === null) return { ...row, scope: undefined };
      if (keeper.spent.has(BigInt(fence))) {
        // It ran under this fence already, and the server refused to hear of its end.
        const isTold = await keeper.fails(session, FAIL, [key, fence, false], NO_TEXT);
        return { state: isTold ? "failed" : "running", result: null, scope: undefined } as const;
      }
      if (keeper.trusts(session) && !signal?.aborted) {
        signal?.removeEventListener("abort", stop);
        return { ...row, scope: new Scope(keeper, key, BigInt(fence), session) };
      }
      await keeper.fails(session, FAIL, [key, fence, true], "not begun");
      return undefined;
    });
    if (!scope) return { first: false, state, result };
    const { session, fence } = scope;
    const fail = async (error: unknown, retry: boolean): Promise<never> => {
      const isTold = await keeper.fails(session, FAIL, [key, fence, retry], error);
      if (!isTold) keeper.spent.add(fence);
      throw translated(error);
    };
    const begin = async () => run(scope);
    const finish = async (result: T) => keeper.call(session, FINISH, [key, fence, JSON.stringify(result) ?? null]);
    try {
      const result = await begin().catch((error) => {
        const told = translated(error);
        // After these it is not known how far the function came.
        return fail(error, !(told instanceof Lost || told instanceof Unsure));
      });
      await finish(result).catch((error) => {
        if (error instanceof LeaseError) throw error; // the session has ended: the key is in doubt
        return fail(error, false); // no JSON, or none that jsonb takes: the function has run all the same
      });
      return { first: true, state: "done", result };
    } finally {
      await scope.end();
    }
  });
  return abortable(told, stopped.signal).finally(() => signal?.removeEventListener("abort", stop));
}
