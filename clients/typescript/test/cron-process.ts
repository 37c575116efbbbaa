// A process of a fleet, for the tests of the adapter of node-cron: runs a distributed task each second, which writes
// which fire time it was. It does so by SQL of its own, so that no fence keeps a second run from being seen.
import { setTimeout as sleep } from "node:timers/promises";
import cron from "node-cron";
import pg from "pg";
import { runCoordinator } from "../src/adapters/node-cron.js";
import { Leases } from "../src/index.js";

const { DATABASE_URL, TASK = "" } = process.env;
const pool = new pg.Pool({ connectionString: DATABASE_URL, max: 2 }).on("error", () => {});
const leases = await new Leases(DATABASE_URL, { ttl: 2_000 }).open();

cron.setRunCoordinator(runCoordinator(leases));
const write = async ({ date }: { date: Date }) => {
  await pool.query("INSERT INTO ts_fires (task, fire, pid) VALUES ($1, $2, $3)", [TASK, date, process.pid]);
  await sleep(300); // may be killed here
};
const task = cron.schedule("* * * * * *", write, { name: TASK, distributed: true });
process.once("SIGTERM", async () => {
  task.stop();
  await leases.drain();
  process.exit();
});
