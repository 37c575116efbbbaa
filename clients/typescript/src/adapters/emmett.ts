import type { Lead, Leases } from "../index.js";
import { Turns } from "../wait.js";

/** Emmett's `ProcessorLock`, in its shape: no release on npm exports the type. */
export interface ProcessorLock<Context = unknown> {
  tryAcquire(context: Context): Promise<boolean>;
  release(context: Context): Promise<void>;
}

/** `lead` is the leadership while the lock is held: its fence guards what the processor writes. */
export type LeaseProcessorLock = ProcessorLock & { readonly lead: Lead | undefined };

export interface ProcessorLockOptions {
  /** Called when the lease, or the trust in it, ends before `release`: close the processor, as Emmett asks its lock
   * only when a processor starts. */
  onLost?: (why: unknown) => void;
}

/** Makes the lock of one instance of a processor, by leading `name`, which stands for the processor, its version and
 * its partition. It needs no context, as the lease lives with the keeper, and not with a connection of Emmett's. */
export function processorLock(leases: Leases, name: string, options: ProcessorLockOptions = {}): LeaseProcessorLock {
  const turns = new Turns(); // a release must not overtake the acquire before it
  let lead: Lead | undefined;

  const give = async () => {
    await lead?.release();
    lead = undefined;
  };
  const acquire = async () => {
    if (lead?.trusted) return true;
    await give();
    const mine = await leases.tryLead(name);
    mine?.signal.addEventListener("abort", () => options.onLost?.(mine.signal.reason), { once: true });
    lead = mine;
    return mine !== undefined;
  };

  return {
    tryAcquire: () => turns.take("", acquire),
    release: () => turns.take("", give),
    get lead() {
      return lead;
    },
  };
}
