import { EventEmitter, once } from "node:events";

/** Resolves as `promise`, or rejects with the signal's reason. `late` gets a value that comes after that. */
export function abortable<T>(promise: Promise<T>, signal?: AbortSignal, late?: (value: T) => unknown): Promise<T> {
  if (!signal) return promise;
  return new Promise((resolve, reject) => {
    const stop = () => {
      reject(signal.reason);
      promise.then(late, () => {});
    };
    if (signal.aborted) return stop();
    signal.addEventListener("abort", stop, { once: true });
    promise.finally(() => signal.removeEventListener("abort", stop)).then(resolve, reject);
  });
}

/** Rejects with a TimeoutError after `ms`. */
export const within = <T>(ms: number, promise: Promise<T>) =>
  abortable(promise, ms < Infinity ? AbortSignal.timeout(Math.max(0, Math.ceil(ms))) : undefined);

/** Counts rings. A waiter notes the count before it asks, and after the answer waits for a greater one. */
export class Bell extends EventEmitter {
  count = 0;
  #later: NodeJS.Timeout | undefined;

  /** Rings after `ms`, unless it rings before. */
  ringIn(ms: number): void {
    clearTimeout(this.#later);
    this.#later = setTimeout(() => this.ring(), ms).unref();
  }

  ring(): void {
    clearTimeout(this.#later);
    this.count++;
    this.emit("ring");
  }

  async after(seen: number, signal?: AbortSignal): Promise<void> {
    signal?.throwIfAborted();
    if (this.count > seen) return;
    await once(this, "ring", { signal }).catch((error) => {
      throw signal?.reason ?? error; // instead of an AbortError
    });
  }
}

/** Runs functions of one name one after another. */
export class Turns extends Map<string, Promise<unknown>> {
  take<T>(name: string, run: () => Promise<T>, signal?: AbortSignal): Promise<T> {
    const before = Promise.resolve(this.get(name));
    const mine = abortable(before, signal).then(run);
    const turn = Promise.allSettled([before, mine]).finally(() => this.get(name) === turn && this.delete(name));
    this.set(name, turn);
    return mine;
  }
}
