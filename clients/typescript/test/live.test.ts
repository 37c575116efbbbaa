import assert from "node:assert/strict";
import { after, before } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import pg, { type PoolClient } from "pg";
import { Closed, type Lead, Leases, Lost, type Partition, Refused, Unsure } from "../src/index.js";
import { FaultyProxy } from "./proxy.js";
import { aborted, live, open, run, until, url } from "./support.js";

const pool = new pg.Pool({ connectionString: url, max: 8 });
const one = async (text: string, values: unknown[] = []) => (await pool.query(text, values)).rows[0];

before(async () => {
  if (url === "") return;
  await pool.query("CREATE TABLE IF NOT EXISTS ts_writes (name text, fence bigint)");
  await pool.query(
    "CREATE TABLE IF NOT EXISTS ts_events (position bigint PRIMARY KEY DEFAULT eskit_lease.position_next(), text text)",
  );
});
after(() => pool.end());

live("a leader writes under its fence, and hands over when it ends", async () => {
  await using first = await open();
  await using second = await open();
  const name = `${run}:lead`;
  let waiting: Promise<Lead>;
  let fence: bigint;
  {
    await using lead = await first.lead(name);
    fence = lead.fence;
    assert.ok(lead.trusted);
    const write = (tx: PoolClient) => tx.query("INSERT INTO ts_writes VALUES ($1, $2)", [name, lead.fence]);
    await lead.transaction(pool, write);
    assert.equal(await second.tryLead(name), undefined);
    waiting = second.lead(name);
    await until(
      async () => (await one("SELECT waiters FROM eskit_lease.leases WHERE resource = $1", [name])).waiters === "1",
    );
  }
  await using next = await waiting;
  assert.ok(next.fence > fence);
  assert.equal((await one("SELECT fence FROM ts_writes WHERE name = $1", [name])).fence, String(fence));
});

live("guard refuses no transaction, an ended scope, and what was undone", async () => {
  await using leases = await open();
  const lead = await leases.lead(`${run}:guard`);
  const client = await pool.connect();
  const plain = { query: (text: string, values?: unknown[]) => client.query(text, values) };
  try {
    await assert.rejects(lead.guard(client), TypeError);
    await assert.rejects(lead.guard(plain), TypeError);
    await assert.rejects(lead.guard(pool), TypeError);
    for (const tx of [client, plain]) {
      await client.query("BEGIN");
      await lead.guard(tx);
      await client.query("COMMIT");
    }
    const serialization = "DO $$ BEGIN RAISE 'told' USING ERRCODE = '40001'; END $$";
    const refused = lead.transaction(pool, (tx) => tx.query(serialization));
    await assert.rejects(
      refused,
      (error) => error instanceof Refused && error.code === "40001" && error.cause instanceof Error,
    );
    const own = new Error("own");
    await assert.rejects(
      lead.transaction(pool, () => Promise.reject(own)),
      own,
    );
    await assert.rejects(
      lead.transaction(pool, (tx) => tx.query("SELECT 1/0")),
      { code: "22012" },
    );
    await assert.rejects(
      lead.transaction(pool, (tx) => tx.query("SELECT 1/0").catch(() => {})),
      /rolled back/,
    );
    await lead.release();
    await lead.release();
    await client.query("BEGIN");
    await assert.rejects(lead.guard(client), Lost);
    await client.query("ROLLBACK");
  } finally {
    client.release();
  }
});

live("a commit without an answer is unsure, and the next scope has a new fence", async () => {
  await using leases = await open();
  const name = `${run}:unsure`;
  const cutting = {
    async connect(): Promise<PoolClient> {
      const client = await pool.connect();
      const query = client.query.bind(client) as (text: string, values?: unknown[]) => Promise<unknown>;
      const cut = (text: string, values?: unknown[]) => {
        if (text === "COMMIT") client.connection.stream.destroy();
        return query(text, values);
      };
      return Object.assign(client, { query: cut as unknown as typeof client.query });
    },
  };
  await using lead = await leases.lead(name);
  await assert.rejects(
    lead.transaction(cutting, async () => {}),
    Unsure,
  );
  assert.ok(lead.signal.aborted && lead.signal.reason instanceof Unsure);
  await lead.release();
  await using next = await leases.lead(name);
  assert.ok(next.fence > lead.fence);
  next.unsure();
  assert.ok(!next.trusted);
});

live("a block leads, and waits for its turn in the process", async () => {
  await using leases = await open();
  const fences: bigint[] = [];
  const lead = async () =>
    leases.lead(`${run}:block`, async (lead) => {
      fences.push(lead.fence);
      await sleep(20);
      fences.push(lead.fence);
      return "done";
    });
  assert.deepEqual(await Promise.all([lead(), lead()]), ["done", "done"]);
  assert.equal(new Set(fences).size, 2);
  assert.equal(fences[0], fences[1]);
  await assert.rejects(
    leases.lead(`${run}:block`, () => Promise.reject(new Error("own"))),
    /own/,
  );
});

live("a waiter that stops gives its place up", async () => {
  await using first = await open();
  await using second = await open();
  const name = `${run}:stop`;
  await using lead = await first.lead(name);
  const waiters = async () => (await one("SELECT waiters FROM eskit_lease.leases WHERE resource = $1", [name])).waiters;
  const stop = new AbortController();
  const waiting = second.lead(name, { signal: stop.signal });
  await until(async () => (await waiters()) === "1");
  stop.abort(new Error("enough"));
  await assert.rejects(waiting, /enough/);
  await until(async () => (await waiters()) === "0");
  await assert.rejects(second.lead(name, { signal: AbortSignal.timeout(50) }), { name: "TimeoutError" });
  await until(async () => (await waiters()) === "0");
  assert.ok(lead.trusted);
});

live("a lease that an administrator takes cancels the scope", async () => {
  await using leases = await open();
  const name = `${run}:force`;
  await using lead = await leases.lead(name);
  await pool.query("SELECT eskit_lease.lease_force_release($1, $2, 'test')", [name, lead.fence]);
  await aborted(lead.signal);
  assert.ok(lead.signal.reason instanceof Lost);
  await lead.release();
  await using next = await leases.lead(name);
  assert.ok(next.fence > lead.fence);
});

live("partitions are shared, and each event is applied once", async () => {
  const group = `${run}:group`;
  await pool.query("SELECT eskit_lease.group_create($1, 4)", [group]);
  await using first = await open();
  await using second = await open();
  const owners = new Map<number, Leases>();
  const applied = new Map<number, bigint[]>();
  const member = (leases: Leases, stop: AbortSignal) =>
    leases.join(
      group,
      async (partition: Partition) => {
        owners.set(partition.partition, leases);
        while (!partition.signal.aborted) {
          await partition.transaction(pool, async (tx) => {
            const start = await partition.position(tx);
            if (start < 20n && (await partition.commit(tx, start + 1n, start)))
              applied.set(partition.partition, [...(applied.get(partition.partition) ?? []), start + 1n]);
          });
          await sleep(5);
        }
      },
      { signal: stop },
    );
  const [stopFirst, stopSecond] = [new AbortController(), new AbortController()];
  const joined = member(first, stopFirst.signal);
  await until(() => owners.size === 4);
  const other = member(second, stopSecond.signal);
  await until(() => [...owners.values()].filter((owner) => owner === second).length === 2);
  stopFirst.abort();
  await joined;
  await until(() => [...owners.values()].every((owner) => owner === second));
  await until(() => [0, 1, 2, 3].every((partition) => applied.get(partition)?.length === 20));
  await second.drain();
  await other;
  const all = Array.from({ length: 20 }, (_, index) => BigInt(index + 1));
  for (const positions of applied.values()) assert.deepEqual(positions, all);
});

live("a partition's work that fails begins anew under another fence", async () => {
  const group = `${run}:fails`;
  await pool.query("SELECT eskit_lease.group_create($1, 1)", [group]);
  await using leases = await open();
  const fences: bigint[] = [];
  const stop = new AbortController();
  const joined = leases.join(
    group,
    async (partition) => {
      fences.push(partition.fence);
      if (fences.length === 1) throw new Error("own");
      if (fences.length === 2)
        return partition.transaction(pool, async (tx) => {
          assert.equal(await partition.commit(tx, 5n, 0n), true);
          assert.equal(await partition.commit(tx, 5n, 0n), false);
          await partition.commit(tx, 9n, 7n);
        });
      await aborted(partition.signal);
    },
    { signal: stop.signal },
  );
  await until(() => fences.length === 3);
  assert.equal(new Set(fences).size, 3);
  stop.abort();
  await joined;
  await assert.rejects(
    leases.join(`${run}:none`, async () => {}),
    { code: "42704" },
  );
});

live("items are handled, tried again, and given back", async () => {
  const queue = `${run}:queue`;
  await pool.query("SELECT eskit_lease.queue_create($1, retry_backoff => '50 ms')", [queue]);
  await pool.query("SELECT eskit_lease.item_add($1, jsonb_build_object('n', n)) FROM generate_series(1, 6) AS n", [
    queue,
  ]);
  await using leases = await open();
  const stop = new AbortController();
  const told: string[] = [];
  let most = 0;
  let now = 0;
  const working = leases.work(
    queue,
    async ({ payload, attempt }, tx) => {
      most = Math.max(most, ++now);
      await sleep(20);
      now--;
      const { n } = payload as { n: number };
      if (n === 1 && attempt === 1) throw new Error("not yet");
      await tx.query("INSERT INTO ts_writes VALUES ($1, $2)", [queue, n]);
      told.push(`${n}/${attempt}`);
    },
    { pool, concurrency: 3, signal: stop.signal },
  );
  await until(() => told.length === 6);
  assert.equal(most, 3);
  assert.ok(told.includes("1/2"));
  await until(
    async () => (await one("SELECT count(*) FROM eskit_lease.items WHERE queue = $1", [queue])).count === "0",
  );
  const starved = new pg.Pool({ connectionString: url, max: 1 });
  const held = await starved.connect();
  stop.abort();
  await working;
  await pool.query("SELECT eskit_lease.item_add($1, '{\"n\": 7}')", [queue]);
  const stopStarved = new AbortController();
  const waits = leases.work(queue, async () => {}, { pool: starved, signal: stopStarved.signal });
  await until(
    async () => (await one("SELECT state FROM eskit_lease.items WHERE queue = $1", [queue])).state === "claimed",
  );
  stopStarved.abort();
  await waits;
  assert.equal((await one("SELECT state FROM eskit_lease.items WHERE queue = $1", [queue])).state, "ready");
  held.release();
  await starved.end();
});

live("a key runs once", async () => {
  await using first = await open();
  await using second = await open();
  const key = `${run}:once`;
  let runs = 0;
  const work = async () => ({ run: ++runs });
  assert.deepEqual(await first.once(key, work), { first: true, state: "done", result: { run: 1 } });
  const both = await Promise.all([first.once(key, work), second.once(key, work)]);
  for (const told of both) assert.deepEqual(told, { first: false, state: "done", result: { run: 1 } });
  await assert.rejects(
    first.once(`${key}:fails`, () => Promise.reject(new Error("own"))),
    /own/,
  );
  // It is known how far the function came, so the next call runs it again.
  assert.equal((await second.once(`${key}:fails`, work)).first, true);
});

live("news wakes a reader that found nothing", async () => {
  await using leases = await open({ watch: "ts_events" });
  await using lead = await leases.lead(`${run}:news`);
  for (let vain = 0; vain < 3; vain++) await Promise.race([lead.news(), sleep(200)]);
  const news = lead.news().then(() => performance.now());
  await sleep(100);
  const began = performance.now();
  await pool.query("INSERT INTO ts_events (text) VALUES ('x')");
  assert.ok((await news) - began < 900);
  const cancelled = lead.news();
  lead.unsure();
  await cancelled;
});

live("a lost connection is no lost session", async () => {
  await using leases = await open({ name: `${run}:cut` });
  const { session } = leases;
  await using lead = await leases.lead(`${run}:cut`);
  await pool.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'eskit_lease'");
  await sleep(1_000);
  assert.equal(leases.session, session);
  assert.ok(lead.trusted);
});

live("an answer that is lost after its commit loses nothing", async () => {
  const name = `${run}:swallow`;
  await pool.query("SELECT eskit_lease.queue_create($1), eskit_lease.group_create($1 || ':group', 1)", [name]);
  await pool.query("SELECT eskit_lease.item_add($1, '{}')", [name]);
  await using proxy = await FaultyProxy.start(url);
  await using leases = await open({}, proxy.url);
  const swallowed = async <T>(text: string, verb: () => Promise<T>): Promise<T> => {
    proxy.swallow = text;
    const done = await verb();
    assert.equal(proxy.swallow, undefined, text);
    return done;
  };
  const lead = await swallowed("lease_acquire", () => leases.lead(name));
  await swallowed("lease_release(", () => lead.release());
  const told = await swallowed("execution_begin", () => leases.once(name, async () => 1));
  assert.deepEqual(told, { first: true, state: "done", result: 1 });
  const again = await swallowed("execution_finish", () => leases.once(`${name}:2`, async () => 2));
  assert.equal(again.result, 2);
  await swallowed("item_claim", async () => {
    const stop = new AbortController();
    await leases.work(name, async () => stop.abort(), { pool, signal: stop.signal });
  });
  assert.equal((await one("SELECT count(*) FROM eskit_lease.items WHERE queue = $1", [name])).count, "0");
  const stop = new AbortController();
  await swallowed("group_join", () => leases.join(`${name}:group`, async () => stop.abort(), { signal: stop.signal }));
});

live("trust ends in time on a silent network, and the same session goes on", async () => {
  await using proxy = await FaultyProxy.start(url);
  await using leases = await open({ ttl: 1_500 }, proxy.url);
  const { session } = leases;
  const lead = await leases.lead(`${run}:silent`);
  const running = lead.transaction(pool, (tx) => tx.query("SELECT pg_sleep(3)"));
  const began = performance.now();
  proxy.isSilent = true;
  await assert.rejects(running, Lost);
  assert.ok(performance.now() - began < 1_600);
  assert.equal(leases.state, "doubting");
  assert.ok(!lead.trusted);
  proxy.isSilent = false;
  await until(() => leases.state === "trusted");
  assert.ok(!lead.trusted, "a cancelled scope is never alive again");
  const release = lead.release();
  await using next = await leases.lead(`${run}:silent`);
  await release;
  assert.ok(leases.session !== session || next.fence > lead.fence);
  proxy.isSilent = true;
  const closing = performance.now();
  await leases.close();
  assert.ok(performance.now() - closing < 1_600);
});

live("after a blocked loop the clock decides", async () => {
  await using leases = await open({ ttl: 1_000 });
  await using lead = await leases.lead(`${run}:blocked`);
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1_100);
  assert.ok(!lead.trusted);
  assert.ok(lead.signal.aborted);
  await assert.rejects(
    lead.transaction(pool, async () => {}),
    Lost,
  );
});

live("a verb that looks just before an answer brings the trust back looks again", async () => {
  await using leases = await open({ ttl: 1_000 });
  for (let tried = 0; tried < 8; tried++) {
    await sleep(500 + 330 * Math.random()); // the news of the release has come
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 850); // the answer waits in the socket
    await using lead = await leases.lead(`${run}:late`);
    assert.ok(lead.trusted);
  }
});

live("an error of join gives its partitions back", async () => {
  const group = `${run}:dropped`;
  await pool.query("SELECT eskit_lease.group_create($1, 1)", [group]);
  await using leases = await open();
  const signals: AbortSignal[] = [];
  const joined = leases.join(group, async ({ signal }) => {
    signals.push(signal);
    await aborted(signal);
  });
  await until(() => signals.length === 1);
  await pool.query("SELECT eskit_lease.group_leave($1, $2)", [group, leases.session]);
  await pool.query("SELECT eskit_lease.group_drop($1)", [group]);
  await assert.rejects(joined, { code: "42704" });
  assert.ok(signals[0]?.aborted);
});

live("signals are left alone once the keeper has ended", async () => {
  const before = process.listenerCount("SIGTERM");
  const leases = await open();
  leases.drainOnSignals();
  assert.equal(process.listenerCount("SIGTERM"), before + 1);
  process.emit("SIGTERM");
  await leases.drain();
  assert.equal(process.listenerCount("SIGTERM"), before);
});

live("drain lets finish what has begun, close does not", async () => {
  const leases = await open();
  const lead = await leases.lead(`${run}:drain`);
  const drained = leases.drain();
  assert.ok(lead.draining.aborted);
  await lead.news();
  assert.ok(lead.trusted && !lead.signal.aborted);
  assert.equal(leases.state, "draining");
  await assert.rejects(leases.lead(`${run}:late`), Closed);
  await lead.transaction(pool, async () => {});
  await lead.release();
  await drained;
  assert.equal(leases.state, "closed");
  assert.equal(leases.session, undefined);

  const other = await open();
  const { session } = other;
  const cancelled = await other.lead(`${run}:drain`);
  aborted(cancelled.signal).then(() => cancelled.release());
  await other.close();
  await other.drain();
  assert.equal(await one("SELECT FROM eskit_lease.sessions WHERE session = $1", [session]), undefined);
});

live("a session that another process takes over is lost, and another opens", async () => {
  const name = `${run}:taken`;
  await using leases = await open({ name });
  const { session } = leases;
  await using lead = await leases.lead(name);
  await using taker = await open({ name, takeover: true });
  await aborted(lead.signal);
  assert.ok(lead.signal.reason instanceof Lost);
  await until(() => leases.state === "trusted" && leases.session !== session);
  assert.notEqual(taker.session, leases.session);
});

live("a key whose result is refused has failed, and never runs again", async () => {
  await using leases = await open();
  const results = { bigint: { n: 5n }, nul: { text: "a\0b" }, surrogate: ["\ud800"] };
  for (const [name, result] of Object.entries(results)) {
    const key = `${run}:result:${name}`;
    let runs = 0;
    const work = async () => {
      runs++;
      return result;
    };
    await assert.rejects(leases.once<unknown>(key, work), name === "bigint" ? TypeError : { severity: "ERROR" });
    assert.deepEqual(await leases.once<unknown>(key, work), { first: false, state: "failed", result: null });
    assert.equal(runs, 1);
  }
  const key = `${run}:result:throws`;
  const throws = () => {
    throw new Error("before any await");
  };
  await assert.rejects(leases.once(key, throws), /before any await/);
  assert.equal((await one("SELECT state FROM eskit_lease.executions WHERE key = $1", [key])).state, "retry");
});

/** Makes connections whose server refuses what has this text, as an encoding that lacks a letter. */
const refusing = (refused: () => string) => async () => {
  const client = new pg.Client(url);
  const query = client.query.bind(client) as (text: string, values?: unknown[]) => Promise<unknown>;
  const refuse = async (text: string, values: unknown[] = []) => {
    const isRefused = refused() && [text, ...values].some((value) => String(value).includes(refused()));
    if (isRefused) throw Object.assign(new Error("told"), { code: "22P05", severity: "ERROR" });
    return query(text, values);
  };
  return Object.assign(client, { query: refuse as unknown as typeof client.query });
};

live("a key of whose end the server hears nothing does not run again under its fence", async () => {
  let refused = "execution_f";
  await using leases = await new Leases(
    refusing(() => refused),
    { ttl: 3_000, log: { info: () => {}, warn: () => {} } },
  ).open();
  const key = `${run}:unheard`;
  let runs = 0;
  const work = async () => ++runs;
  await assert.rejects(leases.once(key, work), { code: "22P05" });
  assert.deepEqual(await leases.once(key, work), { first: false, state: "running", result: null });
  refused = "";
  assert.deepEqual(await leases.once(key, work), { first: false, state: "failed", result: null });
  assert.equal(runs, 1);
});

live("an item fails, whatever was thrown", async () => {
  const queue = `${run}:thrown`;
  await pool.query("SELECT eskit_lease.queue_create($1, max_attempts => 1)", [queue]);
  const thrown = [new Error("bad \0"), new Error("10 €"), new Error("\ud800"), Symbol("bad"), Object.create(null)];
  await pool.query("SELECT eskit_lease.item_add($1, to_jsonb(n)) FROM generate_series(0, 4) AS n", [queue]);
  const warned: string[] = [];
  await using leases = await new Leases(
    refusing(() => "€"),
    { ttl: 3_000, log: { info: () => {}, warn: (text) => warned.push(text) } },
  ).open();
  const stop = new AbortController();
  const handler = async ({ payload }: { payload: unknown }) => {
    throw thrown[payload as number];
  };
  const working = leases.work(queue, handler, { pool, signal: stop.signal });
  const errors = async () =>
    (await pool.query("SELECT error FROM eskit_lease.dead_items WHERE queue = $1 ORDER BY id", [queue])).rows;
  await until(async () => (await errors()).length === 5);
  stop.abort();
  await working;
  const unstored = "the error's text could not be stored";
  const told = (await errors()).map(({ error }) => error);
  assert.deepEqual(told, ["Error: bad \uFFFD", unstored, "Error: \uFFFD", "Symbol(bad)", unstored]);
  assert.ok(warned.some((text) => text.includes("could not be given back")));
});
