import { Lost } from "./errors.js";
import type { Keeper } from "./keeper.js";
import { Scope } from "./scope.js";
import { abortable } from "./wait.js";

type Answer = { fence: string | null; reason: string };
const ACQUIRE = `SELECT fence::text, trust_ms, reason
  FROM eskit_lease.lease_acquire($1::text, $2::uuid, queue => $3::boolean)`;
const RELEASE = "SELECT eskit_lease.lease_release($1::text, $2::bigint) AS released";
const CANCEL = "SELECT eskit_lease.lease_cancel($1::text, $2::uuid)";
const RELEASE_ANY = "SELECT eskit_lease.lease_release_many(ARRAY[$1::text], $2::uuid)";
const RETRY = 1_000; // ms after an answer that gives no place in line, so that no ask will come

/** Leadership of a name. It ends by `release`, or with the block of `await using`. */
export class Lead extends Scope {
  #isReleased = false;
  #life: Promise<void> | undefined;

  /** Ends the scope: waits for its transactions, and releases the lease. */
  async release(): Promise<void> {
    this.#isReleased = true;
    this.bell.ring();
    await this.#life;
  }
  async [Symbol.asyncDispose](): Promise<void> {
    await this.release();
  }

  /** @internal Asks at each ask whether the lease is still held, until the release. Then gives it back. */
  async live(asked: number, life: Promise<void>): Promise<void> {
    this.#life = life;
    const { name, session, keeper, bell } = this;
    for (let seen = asked; ; ) {
      await bell.after(seen);
      seen = bell.count;
      if (this.#isReleased) break;
      if (this.signal.aborted) continue;
      const call = keeper.call<Answer>(session, ACQUIRE, [name, session, false]);
      const [answer] = await call.catch((error) => [{ reason: String(error), fence: null }]);
      if (answer?.reason === "already_held" && answer.fence === String(this.fence)) continue;
      this.cancel(new Lost(`the lease is lost: ${answer?.reason}`));
    }
    await this.end();
    const rows = await keeper.returns<{ released: boolean }>(session, RELEASE, [name, this.fence]);
    // If not, the server refused that, or the session has the name under another fence.
    const isFree = rows?.[0]?.released || (await giveUp(keeper, name, session));
    if (!isFree) keeper.spent.add(this.fence);
  }
}

/** Gives back a place in line, and whatever the session holds of this name. Returns whether that has ended. */
async function giveUp(keeper: Keeper, name: string, session: string): Promise<boolean> {
  await keeper.returns(session, CANCEL, [name, session]);
  return !!(await keeper.returns(session, RELEASE_ANY, [name, session])); // also a grant that crossed the cancel
}

/** Acquires a lease: waits in line, or unless `queues` answers at once, perhaps undefined. */
export function lead(keeper: Keeper, name: string, queues: boolean, signal?: AbortSignal): Promise<Lead | undefined> {
  const turn = `lead ${name}`;
  if (!queues && keeper.turns.has(turn)) return Promise.resolve(undefined); // this process leads, or waits
  const given = new Promise<Lead | undefined>((resolve, reject) => {
    const life = keeper.verb(turn, signal, async (bell) => {
      let place: string | undefined; // the session that may have a place in line, or a lease without a scope
      let asked = 0;
      const look = async (session: string): Promise<Lead | null | undefined> => {
        asked = bell.count;
        if (queues) place = session;
        const [answer] = await keeper.call<Answer>(session, ACQUIRE, [name, session, queues]);
        const fence = answer?.fence && BigInt(answer.fence);
        if (fence) place = session;
        if (fence && keeper.spent.has(fence)) {
          await keeper.giveBack(session, RELEASE_ANY, [name, session]);
          return look(session);
        }
        if (fence && keeper.trusts(session) && !signal?.aborted) {
          place = undefined;
          return new Lead(keeper, name, fence, session, bell);
        }
        if (!queues) return null;
        if (answer?.reason !== "queued") bell.ringIn(RETRY);
        return undefined;
      };
      const { session } = keeper;
      const tried = async () => (session && keeper.trusts(session) ? look(session) : null);
      const looked = queues ? keeper.asks(bell, signal, look) : tried();
      const lead = await looked.finally(() => place && giveUp(keeper, name, place));
      resolve(lead ?? undefined);
      if (lead) await lead.live(asked, life);
    });
    life.catch(reject);
  });
  const late = (lead?: Lead) => lead?.release();
  const limit = queues ? undefined : AbortSignal.timeout(Math.ceil(keeper.ttl / 2)); // for a silent server
  const none = (error: unknown) => (limit?.aborted ? undefined : Promise.reject(error));
  return abortable(abortable(given, limit, late).catch(none), signal, late);
}
