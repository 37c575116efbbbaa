import assert from "node:assert/strict";
import { once } from "node:events";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Leases, type Settings } from "../src/index.js";

/** A database with the extension, for the live tests. */
export const url = process.env.DATABASE_URL ?? "";
/** What the names of this run begin with. */
export const run = `t${process.pid}_${Date.now()}`;
const log = { info: () => {}, warn: () => {} };

export const live = (name: string, work: () => Promise<void>) =>
  test(name, { skip: url === "", timeout: 60_000 }, work);
export const open = (settings: Settings = {}, to = url) => new Leases(to, { ttl: 3_000, log, ...settings }).open();
export const aborted = (signal: AbortSignal) => (signal.aborted ? Promise.resolve() : once(signal, "abort"));

export async function until(isSo: () => boolean | Promise<boolean>, ms = 5_000): Promise<void> {
  for (const end = performance.now() + ms; !(await isSo()); await sleep(10))
    assert.ok(performance.now() < end, "too late");
}
