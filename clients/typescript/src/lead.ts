import { Lost, textOf } from "./errors.js";
import type { Keeper } from "./keeper.js";
import { Scope } from "./scope.js";
import { abortable } from "./wait.js";

type Answer = { fence: string | null; reason: string };
const ACQUIRE = `SELECT fence::text, trust_ms, reason
  FROM eskit_lease.lease_acquire($1::text, $2::uuid, queue => $3::boolean)`;
const RELEASE = "SELECT eskit_lease.lease_release($1::text, $2::bigint)";
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
    let isClear = true; // the session has nothing of this name but this lease
    for (let seen = asked; ; ) {
      await bell.after(seen);
      seen = bell.count;
      if (this.#isReleased) break;
      if (this.signal.aborted) continue;
      const call = keeper.call<Answer>(session, ACQUIRE, [name, session, false]);
      const [answer] = await call.catch((error) => [{ reason: String(error), fence: null }]);
      if (answer?.reason === "already_held" && answer.fence === String(this.fence)) continue;
      this.cancel(new Lost(`the lease is lost: ${answer?.reason}`));
      isClear = false; // it may have been granted anew, under a fence that no scope has
    }
    await this.end();
    await keeper.giveBack(session, RELEASE, [name, this.fence]);
    if (!isClear) await giveUp(keeper, name, session);
  }
}

/** Gives back a place in line, and whatever the session holds of this name. */
async function giveUp(keeper: Keeper, name: string, session: string): Promise<void> {
  await keeper.returns(session, CANCEL, [name, session]);
  await keeper.returns(session, RELEASE_ANY, [name, session]); // also a grant that crossed the cancel
}

/** Acquires a lease: waits in line, or unless `queues` answers at once, perhaps undefined. */
export function lead(keeper: Keeper, name: string, queues: boolean, signal?: AbortSignal): Promise<Lead | undefined> {
  const turn = `lead ${name}`;
  if (!queues && keeper.turns.has(turn)) return Promise.resolve(undefined); // this process leads, or waits
  const given = new Promise<Lead | undefined>((resolve, reject) => {
    const life = keeper.verb(turn, signal, async (bell) => {
      let place: string | undefined; // the session that may have a place in line, or a lease without a scope
      let asked = 0;
      const look = async (session: string) => {
        asked = bell.count;
        if (queues) place = session;
        const [answer] = await keeper.call<Answer>(session, ACQUIRE, [name, session, queues]);
        if (answer?.fence) place = session;
        if (answer?.fence && keeper.trusts(session) && !signal?.aborted) {
          place = undefined;
          return new Lead(keeper, name, BigInt(answer.fence), session, bell);
        }
        if (!queues) return null;
        if (answer?.reason !== "queued") bell.ringIn(RETRY);
        return undefined;
      };
      const lead = await keeper.asks(bell, signal, look).finally(() => place && giveUp(keeper, name, place));
      resolve(lead ?? undefined);
      if (lead) await lead.live(asked, life);
    });
    life.catch(reject);
  });
  return abortable(given, signal, (late) => late?.release().catch((error) => keeper.warn(textOf(error))));
}
