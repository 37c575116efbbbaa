// The five cases of Emmett's testProcessorLock, written anew, and what a lease adds.
import assert from "node:assert/strict";
import { after } from "node:test";
import pg from "pg";
import { type ProcessorLock, processorLock } from "../src/adapters/emmett.js";
import { Lost } from "../src/index.js";
import { live, open, run, until, url } from "./support.js";

const pool = new pg.Pool({ connectionString: url, max: 2 });
after(() => pool.end());
const context = { execute: undefined }; // what Emmett passes, which this lock does not need
let count = 0;
const newName = () => `${run}:emmett:${count++}`;

for (const processes of ["one process", "two processes"]) {
  const keepers = async () => {
    const first = await open();
    const second = processes === "one process" ? first : await open();
    return {
      first,
      second,
      [Symbol.asyncDispose]: async () => void (await Promise.all([first.close(), second.close()])),
    };
  };

  live(`emmett: a lock goes to one instance at a time, in ${processes}`, async () => {
    await using keeper = await keepers();
    const name = newName();
    const first: ProcessorLock<typeof context> = processorLock(keeper.first, name);
    const second: ProcessorLock<typeof context> = processorLock(keeper.second, name);
    assert.equal(await first.tryAcquire(context), true);
    assert.equal(await second.tryAcquire(context), false);
    await first.release(context);
    assert.equal(await second.tryAcquire(context), true);
    assert.equal(await first.tryAcquire(context), false);
    await second.release(context);
  });
}

live("emmett: acquire and release may be called again", async () => {
  await using leases = await open();
  const lock = processorLock(leases, newName());
  await lock.release(context);
  assert.equal(await lock.tryAcquire(context), true);
  const fence = lock.lead?.fence;
  assert.equal(await lock.tryAcquire(context), true);
  assert.equal(lock.lead?.fence, fence);
  await lock.release(context);
  await lock.release(context);
  assert.equal(lock.lead, undefined);
  // A release follows the acquire that was called before it, also without an await between.
  const acquired = lock.tryAcquire(context);
  await lock.release(context);
  assert.equal(await acquired, true);
  assert.equal(lock.lead, undefined);
});

live("emmett: a lock whose session ends is told, and acquired anew", async () => {
  await using leases = await open();
  const name = newName();
  const told: unknown[] = [];
  const lock = processorLock(leases, name, { onLost: (why) => told.push(why) });
  assert.equal(await lock.tryAcquire(context), true);
  const { fence = 0n } = lock.lead ?? {};
  await pool.query("SELECT eskit_lease.session_close($1)", [leases.session]);
  await until(() => told.length === 1);
  assert.ok(told[0] instanceof Lost);
  await until(() => leases.state === "trusted");
  assert.equal(await lock.tryAcquire(context), true);
  assert.ok((lock.lead?.fence ?? 0n) > fence);
  await lock.release(context);
  assert.equal(told.length, 1, "a release is no loss");
});
