import assert from "node:assert/strict";
import { once } from "node:events";
import { type AddressInfo, connect, createServer, type Socket } from "node:net";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Core } from "../src/core.js";
import { Closed, isBroken, Lost, Refused, sqlstate, translated } from "../src/errors.js";
import { Leases } from "../src/index.js";
import { discard } from "../src/line.js";
import { abortable, Bell, Turns, within } from "../src/wait.js";

const ofServer = (code: string) => Object.assign(new Error("told"), { code, severity: "ERROR" });

test("an SQLSTATE is found below other errors, and a code of Node.js is none", () => {
  assert.equal(sqlstate(new Error("of an ORM", { cause: ofServer("LF001") })), "LF001");
  assert.equal(sqlstate(Object.assign(new Error("told"), { code: "EPIPE" })), undefined);
  assert.equal(sqlstate("text"), undefined);
});

test("errors of the server that end the connection are a lost connection", () => {
  for (const code of ["08006", "08P01", "57P01", "57P05"]) assert.ok(isBroken(ofServer(code)), code);
  for (const code of ["57014", "55P03", "LF003"]) assert.ok(!isBroken(ofServer(code)), code);
  assert.ok(isBroken(new Error("read ECONNRESET")));
});

test("errors become what to do", () => {
  for (const code of ["LF001", "55P03", "40001"]) {
    const error = translated(ofServer(code));
    assert.ok(error instanceof Refused, code);
    assert.equal(error.code, code);
    assert.equal(error.name, "Refused");
  }
  assert.ok(translated(ofServer("LF003")) instanceof Lost);
  assert.ok(translated(ofServer("55000"), true) instanceof Lost);
  const own = ofServer("55000");
  assert.equal(translated(own), own);
  const lost = new Lost("told", ofServer("LF001"));
  assert.equal(translated(lost), lost);
});

test("a bell wakes who waits for a greater count, and not who is stopped", async () => {
  const bell = new Bell();
  const stop = new AbortController();
  const stopped = assert.rejects(bell.after(0, stop.signal), /enough/);
  const rung = bell.after(0);
  stop.abort(new Error("enough"));
  await stopped;
  assert.equal(bell.listenerCount("ring"), 1);
  bell.ring();
  await rung;
  await bell.after(0);
  assert.equal(bell.listenerCount("ring"), 0);
});

test("a value that comes after the abort goes to `late`", async () => {
  const stop = new AbortController();
  const late: number[] = [];
  const waiting = abortable(sleep(5, 7), stop.signal, (value) => late.push(value));
  stop.abort(new Error("enough"));
  await assert.rejects(waiting, /enough/);
  await sleep(10);
  assert.deepEqual(late, [7]);
});

test("what takes too long is given up", async () => {
  await assert.rejects(within(5, new Promise(() => setTimeout(() => {}, 50))), { name: "TimeoutError" });
  assert.equal(await within(1_000, Promise.resolve(1)), 1);
});

test("turns of one name follow one another, also after one that gave up", async () => {
  const turns = new Turns();
  const told: string[] = [];
  const stop = new AbortController();
  const run = (name: string) => async () => {
    told.push(`${name} begins`);
    await sleep(5);
    told.push(`${name} ends`);
  };
  const first = turns.take("a", run("first"));
  const second = turns.take("a", run("second"), stop.signal);
  const third = turns.take("a", run("third"));
  const other = turns.take("b", run("other"));
  stop.abort(new Error("enough"));
  await assert.rejects(second, /enough/);
  assert.ok(turns.has("a"));
  await Promise.all([first, third, other]);
  assert.deepEqual(
    told.filter((text) => !text.startsWith("other")),
    ["first begins", "first ends", "third begins", "third ends"],
  );
  await sleep(0);
  assert.ok(!turns.has("a"));
});

test("misuse is told", async () => {
  assert.throws(() => new Leases("postgresql:///x", { takeover: true }), TypeError);
  assert.throws(() => new Leases("postgresql:///x", { ttl: 0 }), RangeError);
  const leases = new Leases("postgresql:///x");
  await assert.rejects(leases.lead("x"), Closed);
  await assert.rejects(leases.tryLead("x"), Closed);
  await assert.rejects(
    leases.join("x", async () => {}),
    Closed,
  );
  await assert.rejects(
    leases.once("x", async () => {}),
    Closed,
  );
  await leases.close();
  await leases.close();
  await assert.rejects(leases.open(), TypeError);
});

test("open gives up with the error of its last try", async () => {
  const log = { info: () => {}, warn: () => {} };
  const leases = new Leases("postgresql://x:x@127.0.0.1:1/x", { ttl: 500, patience: 200, log });
  await assert.rejects(leases.open(), { code: "ECONNREFUSED" });
  assert.equal(leases.state, "closed");
});

test("a session that the keeper closes itself is followed by another at once", () => {
  const core = new Core({ ttl: 9_000, takeover: true, watches: false, chance: () => 1 });
  core.tick(0);
  core.connected(0);
  core.answered(1, { alive: true, trustMs: 6_000, revision: 1n, session: "a" });
  assert.deepEqual(core.replaced(2), [{ do: "cancel" }]);
  assert.equal(core.state(2), "lost");
  const ended = core.answered(3, { alive: false, trustMs: 0, revision: 0n }); // its wait
  assert.deepEqual(ended, [{ do: "open", takeover: false }]);
});

test("a connection that shuts down is closed by its reset", async () => {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const accepted = once(server, "connection");
  const client = connect((server.address() as AddressInfo).port, "127.0.0.1");
  const [socket] = (await accepted) as [Socket];
  const errors: Error[] = [];
  socket.on("error", (error) => errors.push(error)).resume();
  client.end();
  await once(socket, "end");
  await new Promise((resolve) => process.nextTick(resolve));
  const closed = once(socket, "close");
  discard(socket);
  await closed;
  assert.deepEqual(errors, []);
  server.close();
});
