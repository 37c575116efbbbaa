// Rules of the protocol that are easily missed, each with a test of its own.
import assert from "node:assert/strict";
import { createServer, type Server, type Socket } from "node:net";
import { after, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import pg from "pg";
import { Closed, Leases, Lost, type Partition, Refused, Unsure } from "../src/index.js";
import { Calls } from "../src/line.js";
import { FaultyProxy } from "./proxy.js";
import { aborted, live, open, run, until, url } from "./support.js";

const pool = new pg.Pool({ connectionString: url, max: 4 }).on("error", () => {});
after(() => pool.end());
const one = async (text: string, values: unknown[] = []) => (await pool.query(text, values)).rows[0];
const fenceOf = async (name: string) =>
  (await one("SELECT fence FROM eskit_lease.leases WHERE resource = $1 AND session IS NOT NULL", [name]))?.fence;
const quiet = { log: { info: () => {}, warn: () => {} } };

live("a refusal says nothing about trust", async () => {
  await using first = await open();
  await using second = await open();
  await using lead = await first.lead(`${run}:refusal`);
  await using other = await second.lead(`${run}:refusal:other`);
  assert.equal(await second.tryLead(lead.name), undefined);
  assert.equal(second.state, "trusted");
  assert.ok(other.trusted);
});

live("after a refusal without a place in line it asks again", async () => {
  await using leases = await open();
  const client = await pool.connect();
  await client.query("BEGIN");
  await client.query("LOCK TABLE eskit_lease._leases IN EXCLUSIVE MODE"); // the answer is `busy`
  const waiting = leases.lead(`${run}:busy`);
  await sleep(300);
  await client.query("ROLLBACK");
  client.release();
  const began = performance.now();
  await using lead = await waiting;
  assert.ok(lead.trusted && performance.now() - began < 2_000);
});

live("a lease that was granted anew is given back at the end of its scope", async () => {
  await using leases = await open();
  const lead = await leases.lead(`${run}:anew`);
  await pool.query("SELECT eskit_lease.lease_force_release($1, $2, 'test')", [lead.name, lead.fence]);
  await aborted(lead.signal);
  assert.ok(lead.signal.reason instanceof Lost);
  assert.notEqual(await fenceOf(lead.name), String(lead.fence));
  await lead.release();
  assert.equal(await fenceOf(lead.name), undefined);
});

live("a scope whose own fence is refused is over", async () => {
  await using proxy = await FaultyProxy.start(url);
  await using leases = await open({ ttl: 5_000 }, proxy.url);
  await using lead = await leases.lead(`${run}:refused`);
  proxy.isSilent = true; // so that the keeper does not hear of it
  await pool.query("SELECT eskit_lease.lease_force_release($1, $2, 'test')", [lead.name, lead.fence]);
  const refused = lead.transaction(pool, async () => {});
  await assert.rejects(refused, (error) => error instanceof Refused && error.code === "LF001");
  assert.equal(leases.state, "trusted");
  assert.ok(!lead.trusted && lead.signal.reason instanceof Refused);
  proxy.isSilent = false;
});

live("a partition that moves and has no task is released at once", async () => {
  const group = `${run}:revoking`;
  await pool.query("SELECT eskit_lease.group_create($1, 2, rebalance_timeout => '1 h')", [group]);
  await using first = await open();
  await using second = await open();
  await pool.query("SELECT eskit_lease.group_join($1, $2)", [group, first.session]);
  const states = async () =>
    (await pool.query("SELECT state FROM eskit_lease.group_assignment($1, $2)", [group, first.session])).rows;
  await until(async () => (await states()).length === 2);
  const owners: string[] = [];
  const member = (leases: Leases, name: string) =>
    leases.join(group, async ({ signal }) => {
      owners.push(name);
      await aborted(signal);
    });
  const joined = [member(second, "second")];
  await until(async () => (await states()).some(({ state }) => state === "revoking"));
  assert.deepEqual(owners, []);
  joined.push(member(first, "first"));
  await until(() => owners.length === 2);
  assert.deepEqual(owners.sort(), ["first", "second"]);
  await Promise.all([first.drain(), second.drain(), ...joined]);
});

live("a connection that breaks before COMMIT leaves nothing unsure", async () => {
  await using leases = await open();
  await using lead = await leases.lead(`${run}:before-commit`);
  const broken = lead.transaction(pool, async (tx) => {
    await tx.query("SELECT pg_terminate_backend(pg_backend_pid())").catch(() => {});
    await sleep(50);
  });
  await assert.rejects(broken, (error) => !(error instanceof Unsure));
  assert.ok(lead.trusted);
});

live("work that returns by itself pauses, ever longer", async () => {
  const group = `${run}:returns`;
  await pool.query("SELECT eskit_lease.group_create($1, 1)", [group]);
  await using leases = await open();
  const stop = new AbortController();
  const starts: number[] = [];
  const joined = leases.join(group, async () => starts.push(performance.now()), { signal: stop.signal });
  await until(() => starts.length === 4);
  stop.abort();
  await joined;
  const pauses = starts.slice(1).map((start, index) => start - (starts[index] as number));
  for (const [index, least] of [100, 200, 400].entries())
    assert.ok((pauses[index] as number) >= least - 2, `${pauses}`);
});

live("a partition is told of the drain before it is given back", async () => {
  const group = `${run}:told`;
  await pool.query("SELECT eskit_lease.group_create($1, 1)", [group]);
  const leases = await open();
  const owner = async () =>
    (await one("SELECT owner FROM eskit_lease.group_partitions WHERE group_name = $1", [group])).owner;
  let held: unknown;
  let hasBegun = false;
  const joined = leases.join(group, async ({ draining }) => {
    hasBegun = true;
    await aborted(draining);
    held = await owner();
  });
  await until(() => hasBegun);
  await leases.drain();
  await joined;
  assert.ok(held);
  assert.equal(await owner(), null);
});

live("a table that cannot be watched fails open, and ends no trust later", async () => {
  await assert.rejects(open({ watch: "ts_nowhere" }), /ts_nowhere/);
  const table = `ts_watched_${process.pid}`;
  await pool.query(`CREATE TABLE ${table} (position bigint PRIMARY KEY DEFAULT eskit_lease.position_next())`);
  await using leases = await open({ watch: table, ttl: 1_500, name: `${run}:watch` });
  const { session } = leases;
  await using lead = await leases.lead(`${run}:watch`);
  await pool.query(`DROP TABLE ${table}`);
  await pool.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'eskit_lease'");
  await sleep(3_000);
  assert.equal(leases.session, session);
  assert.ok(lead.trusted);
});

live("55000 of a call ends no session: a member that was put out joins again", async () => {
  const group = `${run}:put-out`;
  await pool.query("SELECT eskit_lease.group_create($1, 1)", [group]);
  await using leases = await open();
  const { session } = leases;
  const fences: bigint[] = [];
  const joined = leases.join(group, async ({ fence, signal }) => {
    fences.push(fence);
    await aborted(signal);
  });
  await until(() => fences.length === 1);
  await pool.query("SELECT eskit_lease.group_leave($1, $2)", [group, session]);
  await until(() => fences.length === 2);
  assert.ok((fences[1] as bigint) > (fences[0] as bigint));
  assert.equal(leases.session, session);
  await leases.drain();
  await joined;
});

live("a transaction that may finish when its partition moves is still cut by close", async () => {
  const group = `${run}:cut`;
  await pool.query("SELECT eskit_lease.group_create($1, 1)", [group]);
  const leases = await open();
  const stop = new AbortController();
  let running: Promise<unknown> | undefined;
  const work = async (partition: Partition) => {
    running = partition.transaction(pool, (tx) => tx.query("SELECT pg_sleep(20)"));
    await running;
  };
  const joined = leases.join(group, work, { signal: stop.signal });
  await until(() => running !== undefined);
  const cut = assert.rejects(running as Promise<unknown>, Lost);
  stop.abort();
  await sleep(200);
  const began = performance.now();
  const closed = leases.close();
  await cut;
  assert.ok(performance.now() - began < 1_000);
  await Promise.all([closed, joined]);
});

/** A server that accepts connections, and never says a word. */
async function silent(): Promise<{ server: Server; sockets: Set<Socket>; accepted(): number; to: string }> {
  const sockets = new Set<Socket>();
  let accepted = 0;
  const server = createServer((socket) => {
    accepted++;
    sockets.add(socket);
    socket.on("error", () => {}).on("close", () => sockets.delete(socket));
    socket.resume();
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as { port: number };
  return { server, sockets, accepted: () => accepted, to: `postgresql://x:x@127.0.0.1:${port}/x` };
}

test("a connection that is just being made is closed by close, and connecting has a deadline", async () => {
  const { server, sockets, accepted, to } = await silent();
  const leases = new Leases(to, { ttl: 600, ...quiet });
  const opened = assert.rejects(leases.open());
  await until(() => accepted() === 2, 2_000); // the first was given up
  assert.equal(sockets.size, 1);
  await leases.close();
  await opened;
  await until(() => sockets.size === 0, 500);

  const calls = new Calls(to);
  const asked = assert.rejects(calls.ask("SELECT", [], () => performance.now() + 600));
  await until(() => sockets.size === 1, 1_000);
  await calls.close();
  await until(() => sockets.size === 0, 100);
  await asked;
  await assert.rejects(
    calls.ask("SELECT", [], () => Infinity),
    Closed,
  );
  server.close();
});
