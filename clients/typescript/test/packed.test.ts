// The packed library in a project of a user: its types under both ways to find modules, and plain JavaScript.
import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import { mkdirSync, rmSync, writeFileSync } from "node:fs";
import { test } from "node:test";

const project = "build/packed"; // finds what else it needs in the node_modules above
const library = `${project}/node_modules/eskit-lease`;
const shell = (file: string, ...args: string[]) => execFileSync(file, args, { encoding: "utf8" });
const tsc = (...options: string[]) => {
  const strict = ["--noEmit", "--strict", "--exactOptionalPropertyTypes", "--skipLibCheck", "false", "--types", "node"];
  const args = [`${project}/main.ts`, "--ignoreConfig", ...strict, "--target", "es2022", ...options];
  const { status, stdout } = spawnSync("node_modules/.bin/tsc", args, { encoding: "utf8" });
  assert.equal(status, 0, stdout);
};
const TYPED = `
import { type Lead, LeaseError, Leases, Lost, type Partition, type Settings } from "eskit-lease";
import { processorLock } from "eskit-lease/emmett";
import { runCoordinator } from "eskit-lease/node-cron";
import { setRunCoordinator } from "node-cron";
import pg from "pg";

const settings: Settings = { ttl: 10_000, onState: (state) => console.log(state) };
const pool = new pg.Pool();
const leases = new Leases(() => new pg.Client({ ssl: true }), settings);
const lead: Lead | undefined = await leases.tryLead("x", { signal: AbortSignal.timeout(1_000) });
await lead?.transaction(pool, async (tx) => (await tx.query<{ n: number }>("SELECT 1 AS n")).rows[0]?.n.toFixed());
await leases.join("x", async (partition: Partition) => {
  await fetch("http://localhost", { signal: partition.signal });
});
const told: number | null = (await leases.once("x", async () => 1)).result;
setRunCoordinator(runCoordinator(leases));
const held: boolean = await processorLock(leases, "x").tryAcquire({ execute: told });
console.log(held, LeaseError, Lost, lead?.fence === 1n);
`;
const PLAIN = `
import { Closed, LeaseError, Leases, Lost, Refused, Unsure } from "eskit-lease";
import { processorLock } from "eskit-lease/emmett";
import { runCoordinator } from "eskit-lease/node-cron";
const leases = new Leases("postgresql:///x");
await leases.lead("x").catch((error) => console.log(error instanceof Closed, error.name));
console.log([LeaseError, Lost, Refused, Unsure, processorLock, runCoordinator].map((each) => each.name).join());
`;

test("the packed library works in a strict project and in plain JavaScript", () => {
  rmSync(project, { recursive: true, force: true });
  mkdirSync(library, { recursive: true });
  shell("tar", "--extract", "--gzip", "--file=eskit-lease.tgz", "--strip-components=1", `--directory=${library}`);
  writeFileSync(`${project}/package.json`, '{ "type": "module" }');
  writeFileSync(`${project}/main.ts`, TYPED);
  tsc("--module", "node16", "--moduleResolution", "node16");
  tsc("--module", "esnext", "--moduleResolution", "bundler");
  const block = "await using also = await leases.lead('x');\nconsole.log(also.fence);";
  writeFileSync(`${project}/main.ts`, `${TYPED}${block}`);
  tsc("--module", "nodenext", "--lib", "es2022,esnext.disposable");
  writeFileSync(`${project}/main.js`, PLAIN);
  const told = "true Closed\nLeaseError,Lost,Refused,Unsure,processorLock,runCoordinator\n";
  assert.equal(shell(process.execPath, `${project}/main.js`), told);
  const common = 'import("eskit-lease").then(({ Leases }) => console.log(Leases.name))';
  writeFileSync(`${project}/main.cjs`, common);
  assert.equal(shell(process.execPath, `${project}/main.cjs`), "Leases\n");
});
