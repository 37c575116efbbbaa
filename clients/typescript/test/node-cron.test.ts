// node-cron's own tests of distributed runs take a coordinator of their own, and its package has none of them. So these
// are their cases, and those of its coordinator for Redis, written anew against the adapter. A fleet is killed as well.
import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { after, before } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import cron from "node-cron";
import pg from "pg";
import { type RunCoordinator, runCoordinator } from "../src/adapters/node-cron.js";
import { Closed, Lost, Refused } from "../src/index.js";
import { live, open, run, until, url } from "./support.js";

const pool = new pg.Pool({ connectionString: url, max: 4 });
const LEASE = 30_000; // node-cron's hint, which a lease with heartbeats does not need
let count = 0;
const newKey = () => `${run}:${count++}:2026-06-17T03:00:00.000Z`;
const stateOf = async (key: string) =>
  (await pool.query("SELECT state FROM eskit_lease.executions WHERE key = $1", [key])).rows[0]?.state;

before(async () => {
  if (url) await pool.query("CREATE TABLE IF NOT EXISTS ts_fires (task text, fire timestamptz, pid int)");
});
after(() => pool.end());

live("node-cron: one of those that race for a fire runs it, and no one later", async () => {
  await using first = await open();
  await using second = await open();
  const fleet = [runCoordinator(first), runCoordinator(first), runCoordinator(second)];
  for (let round = 0; round < 5; round++) {
    const key = newKey();
    const told = await Promise.all(fleet.map((each) => each.shouldRun(key, LEASE)));
    assert.equal(told.filter(Boolean).length, 1);
    const [winner, loser] = [fleet[told.indexOf(true)], fleet[told.indexOf(false)]];
    assert.equal(await stateOf(`node-cron:${key}`), "running");
    await loser?.onComplete(key); // of which it holds nothing
    assert.equal(await stateOf(`node-cron:${key}`), "running");
    await winner?.onComplete(key);
    await winner?.onComplete(key);
    assert.equal(await stateOf(`node-cron:${key}`), "done");
    for (const late of fleet) assert.equal(await late.shouldRun(key, LEASE), false);
  }
});

live("node-cron: a coordinator without its database fails closed, in time", async () => {
  await using leases = await open();
  const late = runCoordinator(leases, { prefix: `${run}:late:`, patience: 300 });
  const key = newKey();
  assert.equal(await late.shouldRun(key, LEASE), true);
  await pool.query("SELECT eskit_lease.session_close($1)", [leases.session]);
  await assert.rejects(late.onComplete(key), (error) => error instanceof Lost || error instanceof Refused);
  assert.equal(await stateOf(`${run}:late:${key}`), "in_doubt");
  await assert.rejects(late.shouldRun(newKey(), LEASE), { name: "TimeoutError" }); // another session opens after 0.5 s
  await leases.close();
  await assert.rejects(late.shouldRun(newKey(), LEASE), Closed);
});

live("node-cron: tasks run where they are elected, and tell why they are skipped", async () => {
  await using first = await open();
  await using second = await open();
  const ran: string[] = [];
  const skipped: (string | undefined)[] = [];
  const logger = { info: () => {}, warn: () => {}, error: () => {}, debug: () => {} };
  const task = (name: string, coordinator?: RunCoordinator) => {
    const options = { name, distributed: true, logger, ...(coordinator && { runCoordinator: coordinator }) };
    const made = cron.schedule("* * * * * *", ({ date }) => void ran.push(date.toISOString()), options);
    made.on("execution:skipped", ({ reason }) => void skipped.push(reason));
    return made;
  };
  cron.setRunCoordinator(runCoordinator(first));
  const tasks = [task(`${run}:job`), task(`${run}:job`, runCoordinator(second))];
  await until(() => ran.length >= 3);
  await Promise.all(tasks.map((each) => each.destroy()));
  assert.equal(new Set(ran).size, ran.length);
  assert.deepEqual([...new Set(skipped)], ["not-elected"]);

  await second.close();
  skipped.length = 0;
  const closed = task(`${run}:closed`, runCoordinator(second));
  await until(() => skipped.length > 0);
  await closed.destroy();
  assert.equal(skipped[0], "coordinator-error");
  assert.throws(() => cron.createTask("* * * * *", () => {}, { distributed: true }), /name/);
  cron.setRunCoordinator(undefined);
});

live("node-cron: each fire time runs once in a fleet that is killed, cut off and stopped", async () => {
  const name = `${run}:fleet`;
  const program = fileURLToPath(new URL("cron-process.js", import.meta.url));
  const fleet = new Map<number, ChildProcess>();
  const start = () => {
    const env = { ...process.env, TASK: name };
    const started = spawn(process.execPath, [program], { env, stdio: ["ignore", "inherit", "inherit"] });
    fleet.set(started.pid as number, started);
  };
  const fires = async (): Promise<{ fire: Date; pid: number }[]> =>
    (await pool.query("SELECT fire, pid FROM ts_fires WHERE task = $1 ORDER BY fire", [name])).rows;
  const next = async () => {
    const known = (await fires()).length;
    await until(async () => (await fires()).length > known, 10_000);
    return (await fires()).at(-1)?.pid as number;
  };
  try {
    for (let n = 0; n < 3; n++) start();
    for (let kills = 0; kills < 4; kills++) {
      const pid = await next(); // is in its run for 300 ms
      fleet.get(pid)?.kill("SIGKILL");
      fleet.delete(pid);
      start();
      await next();
    }
    await pool.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'eskit_lease'");
    await next();
    const stopped = await next();
    fleet.get(stopped)?.kill("SIGSTOP");
    await sleep(3_500); // beyond its TTL
    fleet.get(stopped)?.kill("SIGCONT");
    await next();
    await next();
    for (const each of fleet.values()) each.kill("SIGTERM");
    for (const each of fleet.values()) if (each.exitCode === null) await once(each, "exit");
    for (const each of fleet.values()) assert.equal(each.exitCode, 0);
  } finally {
    for (const each of fleet.values()) each.kill("SIGKILL");
  }
  const times = (await fires()).map(({ fire }) => fire.getTime());
  assert.equal(new Set(times).size, times.length);
  const seconds = ((times.at(-1) as number) - (times[0] as number)) / 1_000 + 1;
  assert.ok(times.length >= seconds - 2, `${times.length} of ${seconds} fire times ran`);
});
