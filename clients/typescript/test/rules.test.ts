// Rules of the protocol that are easily missed, each with a test of its own.
import assert from "node:assert/strict";
import { createServer, type Server, type Socket } from "node:net";
import { after, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import pg from "pg";
import { Closed, Leases, Lost, type Partition, Refused, Unsure } from "../src/index.js";
import { Calls } from "../src/line.js";
import { within } from "../src/wait.js";
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

live("what was taken by a call without an answer is given back when the caller stops", async () => {
  const name = `${run}:gone`;
  await pool.query("SELECT eskit_lease.group_create($1, 2), eskit_lease.queue_create($1)", [name]);
  await pool.query("SELECT eskit_lease.item_add($1, '{}')", [name]);
  await using proxy = await FaultyProxy.start(url);
  await using leases = await open({}, proxy.url);
  const isIdle = () => leases.turns.size === 0;
  const stopped = async (text: string, verb: (signal: AbortSignal) => Promise<unknown>, ends = false) => {
    const stop = new AbortController();
    proxy.swallow = text;
    const running = verb(stop.signal);
    const ended = ends ? running : assert.rejects(running, /enough/);
    await until(() => proxy.swallow === undefined);
    stop.abort(new Error("enough"));
    await ended;
  };
  const never = () => assert.fail("the caller has gone");

  await stopped("lease_acquire", (signal) => leases.tryLead(`${name}:lead`, { signal }));
  await until(isIdle);
  assert.equal(await fenceOf(`${name}:lead`), undefined);
  await stopped("lease_acquire", (signal) => leases.lead(`${name}:lead`, { signal }));
  await until(isIdle);
  assert.equal(await fenceOf(`${name}:lead`), undefined);

  await stopped("execution_begin", (signal) => leases.once(name, never, { signal }));
  await until(isIdle);
  assert.equal((await one("SELECT state FROM eskit_lease.executions WHERE key = $1", [name])).state, "retry");

  await stopped("group_join", (signal) => leases.join(name, never, { signal }), true);
  const members = await one("SELECT count(*) FROM eskit_lease.group_members WHERE group_name = $1", [name]);
  assert.equal(members.count, "0");

  await stopped("item_claim", (signal) => leases.work(name, never, { pool, signal }), true);
  await until(
    async () => (await one("SELECT state FROM eskit_lease.items WHERE queue = $1", [name])).state === "ready",
  );
});

/** Connections on which a server raises an error instead of the next answers to calls with a text. */
function failing() {
  const faults = { text: "", code: "", times: 0 };
  const connection = () => {
    const client = new pg.Client(url);
    const query = client.query.bind(client) as (text: string, values?: unknown[]) => Promise<unknown>;
    const fail = async (text: string, values?: unknown[]) => {
      if (!text.includes(faults.text) || faults.times-- <= 0) return query(text, values);
      throw Object.assign(new Error(`told ${faults.code}`), { code: faults.code, severity: "ERROR" });
    };
    return Object.assign(client, { query: fail as unknown as typeof client.query });
  };
  return { faults, connection };
}

live("an error of the server that passes ends no verb", async () => {
  const name = `${run}:passes`;
  await pool.query("SELECT eskit_lease.group_create($1, 1), eskit_lease.queue_create($1)", [name]);
  await pool.query("SELECT eskit_lease.item_add($1, '{}') FROM generate_series(1, 3)", [name]);
  const { faults, connection } = failing();
  await using leases = await new Leases(connection, { ttl: 3_000, ...quiet }).open();
  for (const code of ["55P03", "57014", "40001"]) {
    Object.assign(faults, { text: "item_claim", code, times: 1 });
    const stop = new AbortController();
    await leases.work(name, async () => stop.abort(), { pool, signal: stop.signal });
    assert.ok(faults.times <= 0, code);
  }
  for (const text of ["group_join", "group_assignment"]) {
    for (const code of ["40001", "53400"]) {
      Object.assign(faults, { text, code, times: 2 });
      const stop = new AbortController();
      await leases.join(name, async () => stop.abort(), { signal: stop.signal });
      assert.ok(faults.times <= 0, code);
    }
  }
  Object.assign(faults, { text: "lease_acquire", code: "53400", times: 1 });
  await (await leases.lead(`${name}:lead`)).release();
  Object.assign(faults, { text: "execution_begin", code: "40001", times: 1 });
  assert.equal((await leases.once(name, async () => 1)).result, 1);
});

live("a member leaves after an error of join, and a fence whose release was refused is not used again", async () => {
  const group = `${run}:leaves`;
  await pool.query("SELECT eskit_lease.group_create($1, 1)", [group]);
  const { faults, connection } = failing();
  await using leases = await new Leases(connection, { ttl: 3_000, ...quiet }).open();
  Object.assign(faults, { text: "group_assignment", code: "42501", times: 1 });
  await assert.rejects(
    leases.join(group, async () => {}),
    { code: "42501" },
  );
  const members = await one("SELECT count(*) FROM eskit_lease.group_members WHERE group_name = $1", [group]);
  assert.equal(members.count, "0");

  Object.assign(faults, { text: "group_release", code: "42501", times: 1 });
  const fences: bigint[] = [];
  const work = async ({ fence, signal }: Partition) => {
    fences.push(fence);
    if (fences.length > 1) await aborted(signal);
  };
  for (const count of [2, 3]) {
    const stop = new AbortController();
    const joined = leases.join(group, work, { signal: stop.signal });
    await until(() => fences.length === count);
    Object.assign(faults, { text: "set_config", code: "XX000", times: 2 }); // the release and the leave
    stop.abort();
    await joined;
  }
  assert.deepEqual(fences, [...new Set(fences)]);
});

live("a claim without an answer, of a role that may not look, is given up with its session", async () => {
  const name = `${run}:blind`;
  const role = `ts_blind_${process.pid}`;
  await pool.query(`CREATE ROLE ${role}; SELECT eskit_lease.grant_consumer('${role}')`);
  await pool.query("SELECT eskit_lease.queue_create($1)", [name]);
  await pool.query("SELECT eskit_lease.item_add($1, '{}')", [name]);
  await using proxy = await FaultyProxy.start(url);
  const connection = () => new pg.Client({ connectionString: proxy.url, options: `-c role=${role}` });
  const warned: string[] = [];
  const log = { info: () => {}, warn: (text: string) => warned.push(text) };
  {
    await using leases = await new Leases(connection, { ttl: 9_000, log }).open();
    const { session } = leases;
    await using lead = await leases.lead(name + 1);
    const stop = new AbortController();
    proxy.swallow = "item_claim";
    await leases.work(name, async () => stop.abort(), { pool, signal: stop.signal });
    assert.ok(lead.signal.aborted);
    assert.notEqual(leases.session, session);
    assert.equal(await one("SELECT FROM eskit_lease.sessions WHERE session = $1", [session]), undefined);
    assert.ok(warned.some((text) => text.includes("grant_monitor")));
    assert.ok(!warned.some((text) => text.includes("another process")));
  }
  await pool.query(`DROP OWNED BY ${role}; DROP ROLE ${role}`);
});

live("a connection that has ended while it was idle is not used", async () => {
  const calls = new Calls(url);
  const pid = async () =>
    (await calls.ask<{ pid: number }>("SELECT pg_backend_pid() AS pid", [], () => Infinity))[0]?.pid;
  const first = await pid();
  const ending = pool.query("SELECT pg_sleep(0.1), pg_terminate_backend($1)", [first]);
  await sleep(50);
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 500); // its end is not yet heard of
  assert.notEqual(await pid(), first);
  await ending;
  await calls.close();
});

live("an item whose handler has not begun loses no attempt", async () => {
  const name = `${run}:unbegun`;
  await pool.query("SELECT eskit_lease.queue_create($1, max_attempts => 1)", [name]);
  await pool.query("SELECT eskit_lease.item_add($1, '{}')", [name]);
  await using leases = await open();
  let refusals = 2;
  const full = {
    async connect() {
      if (refusals-- > 0) throw new Error("timeout exceeded when trying to connect");
      return pool.connect();
    },
  };
  const stop = new AbortController();
  const attempts: number[] = [];
  const began = performance.now();
  await leases.work(
    name,
    async ({ attempt }) => {
      attempts.push(attempt);
      stop.abort();
    },
    { pool: full, signal: stop.signal },
  );
  assert.deepEqual(attempts, [1]);
  assert.ok(performance.now() - began > 1_900);
});

live("a lead whose release was refused is not led again under its fence", async () => {
  const { faults, connection } = failing();
  await using leases = await new Leases(connection, { ttl: 3_000, ...quiet }).open();
  const name = `${run}:kept`;
  const fences: bigint[] = [];
  for (const times of [1, 2, 1, 2]) {
    const lead = await (fences.length < 2 ? leases.lead(name) : leases.tryLead(name));
    fences.push(lead?.fence ?? 0n);
    Object.assign(faults, { text: "lease_release", code: "XX000", times });
    await lead?.release();
    assert.ok(faults.times <= 0);
  }
  assert.deepEqual(fences.toSorted(), [...new Set(fences)]);
});

live("a lease under another fence is given back with the scope", async () => {
  await using leases = await open();
  const lead = await leases.lead(`${run}:other`);
  lead.unsure(); // so that it does not ask
  await pool.query("SELECT eskit_lease.lease_force_release($1, $2, 'test')", [lead.name, lead.fence]);
  await pool.query("SELECT eskit_lease.lease_acquire($1, $2)", [lead.name, leases.session]);
  await lead.release();
  assert.equal(await fenceOf(lead.name), undefined);
});

live("a try throws at once what a lead waits for", async () => {
  const { faults, connection } = failing();
  await using leases = await new Leases(connection, { ttl: 60_000, ...quiet }).open();
  Object.assign(faults, { text: "lease_acquire", code: "55000", times: 1_000 });
  const refused = assert.rejects(leases.tryLead(`${run}:try`), { code: "55000" });
  await within(5_000, refused);
  assert.equal(faults.times, 999);
  faults.times = 1;
  await (await leases.lead(`${run}:try`)).release();
});

live("a try waits for no server that is silent", async () => {
  await using proxy = await FaultyProxy.start(url);
  await using leases = await open({ ttl: 1_500 }, proxy.url);
  proxy.isSilent = true;
  assert.equal(await within(5_000, leases.tryLead(`${run}:silent`)), undefined);
  assert.equal(await within(5_000, leases.tryLead(`${run}:silent`)), undefined);
  proxy.isSilent = false;
});
