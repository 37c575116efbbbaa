import type { PoolClient } from "pg";
import { cancelled, isBroken, sqlstate, translated, Unsure } from "./errors.js";
import { abortable } from "./wait.js";

/** A connection in a transaction: a client of node-postgres, or any object with such a `query`. */
export interface Queryable {
  query(text: string, values?: unknown[]): Promise<{ rows: unknown[] }>;
  getTransactionStatus?(): string | null;
}
/** What gives the application's connections: a pool of node-postgres. */
export type Pool = { connect(): Promise<PoolClient> };
export type Work<T> = (tx: PoolClient) => Promise<T>;
/** What a transaction belongs to. `signal`: begin none. `cut`: what has begun must not commit any more. */
type Owner = { signal: AbortSignal; cut: AbortSignal; patience: number; unsure(): void };

/** Makes a call that checks a fence. Refuses a connection in no transaction, which node-postgres knows; of another kind
 * only the server does. */
export async function check<Row>(tx: Queryable, text: string, values: unknown[]): Promise<Row> {
  const misuse = "this needs a connection in a transaction: BEGIN first";
  try {
    if (!tx.getTransactionStatus) await tx.query("SAVEPOINT eskit_lease");
    else if (!"TE".includes(tx.getTransactionStatus() ?? "I")) throw new TypeError(misuse);
    return (await tx.query(text, values)).rows[0] as Row;
  } catch (error) {
    throw sqlstate(error) === "25P01" ? new TypeError(misuse, { cause: error }) : translated(error, true);
  }
}

/** Runs `work` in a transaction that begins with `begin`. If its owner cuts it, the query at hand is ended by its
 * connection's end; a COMMIT has some patience, as its end would be unknown. */
export async function transact<T>(owner: Owner, pool: Pool, begin: Work<unknown>, work: Work<T>): Promise<T> {
  const tx = await abortable(pool.connect(), owner.signal, (late) => late.release());
  let [isCommitting, isLost] = [false, false];
  let timer: NodeJS.Timeout | undefined;
  const lose = () => {
    isLost = true;
  };
  const cut = () => {
    timer = setTimeout(() => tx.end(), isCommitting ? owner.patience : 0);
  };
  tx.on("error", lose);
  owner.cut.addEventListener("abort", cut);
  try {
    await tx.query("BEGIN");
    await begin(tx);
    const result = await work(tx);
    isCommitting = !isLost && !owner.cut.aborted;
    const { command } = await tx.query(isCommitting ? "COMMIT" : "ROLLBACK");
    if (command === "COMMIT") return result;
    isCommitting = false;
    throw new Error("rolled back: a statement failed, and its error was caught within the transaction");
  } catch (error) {
    await tx.query("ROLLBACK").catch(lose);
    if (isCommitting && isBroken(error)) {
      owner.unsure();
      throw new Unsure("the connection broke before COMMIT was answered", error);
    }
    throw owner.cut.aborted ? cancelled(error) : translated(error);
  } finally {
    clearTimeout(timer);
    owner.cut.removeEventListener("abort", cut);
    tx.off("error", lose).release(isLost);
  }
}
