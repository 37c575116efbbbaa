// The program of the conformance kit: commands as JSON lines in, events as JSON lines out. See the page of the kit.
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import pg, { type PoolClient } from "pg";
import { type Execution, type Lead, Leases, Lost, type Partition, Refused, Unsure } from "../src/index.js";

type Command = {
  do: string;
  id?: string | number;
  dsn: string;
  work?: string;
  pool?: number;
  name: string;
  ttl?: number;
  takeover?: boolean;
  every?: number;
  group: string;
  queue: string;
  concurrency?: number;
  key: string;
  seconds?: number;
  fail?: boolean;
  case: string;
};
type Payload = { fail?: number; seconds?: number };

const APPLY = "INSERT INTO kit_applied (part, position, fence, consumer) VALUES ($1, $2, $3, $4)";
const NEXT = `SELECT position FROM kit_events
  WHERE part = $1 AND position > $2 AND position < eskit_lease.position_horizon() ORDER BY position LIMIT 5`;
const stops = new Map<string | number, AbortController>();
let leases: Leases;
let pool: pg.Pool;
let dsn: string;
let consumer: string;

function tell(event: string, command: Partial<Command> = {}, more: Record<string, unknown> = {}): void {
  const id = command.id === undefined ? {} : { id: command.id };
  const at = Number(process.hrtime.bigint()) / 1e9;
  const plain = (_key: string, value: unknown) => (typeof value === "bigint" ? Number(value) : value);
  process.stdout.write(`${JSON.stringify({ event, at, ...id, ...more }, plain)}\n`);
}

function makePool(command: Command): pg.Pool {
  const made = new pg.Pool({ connectionString: command.work ?? command.dsn, max: command.pool ?? 4 });
  return made.on("error", () => {});
}

async function open(command: Command): Promise<void> {
  const { name, ttl = 30, takeover = false } = command;
  dsn = command.dsn;
  consumer = name;
  pool = makePool(command);
  const log = { info: console.error, warn: console.error };
  const onState = (state: string) => tell("keeper", {}, { state });
  leases = new Leases(dsn, { name, ttl: ttl * 1000, takeover, log, onState });
  await leases.open();
  tell("opened", command, { session: leases.session });
}

/** Runs one transaction after another until the scope is to end. A partition's ends by an error of a lease, so that its
 * work begins anew; a leader's goes on. */
async function repeat(
  command: Command,
  scope: Lead | Partition,
  stop: AbortSignal,
  about: Record<string, unknown>,
  done: string,
  work: (tx: PoolClient) => Promise<unknown>,
): Promise<void> {
  const told = { ...about, fence: scope.fence };
  scope.signal.addEventListener("abort", () => tell("cancelled", command, told));
  while (scope.trusted && !scope.draining.aborted && !stop.aborted) {
    tell("begin", command, told);
    try {
      await scope.transaction(pool, work);
      tell(done, command, told);
    } catch (error) {
      const known = [Lost, Refused, Unsure].find((kind) => error instanceof kind);
      tell(known?.name.toLowerCase() ?? "error", command, { ...told, message: String(error) });
      if (known && "partition" in scope) throw error;
    }
    const pause = AbortSignal.any([scope.signal, scope.draining, stop]);
    await sleep((command.every ?? 0.01) * 1000, undefined, { signal: pause }).catch(() => {});
  }
}

async function lead(command: Command, stop: AbortSignal): Promise<void> {
  while (!stop.aborted) {
    const scope = await leases.lead(command.name, { signal: stop });
    tell("granted", command, { fence: scope.fence });
    const write = (tx: PoolClient) =>
      tx.query("INSERT INTO kit_writes (consumer, name, fence) VALUES ($1, $2, $3)", [
        consumer,
        command.name,
        scope.fence,
      ]);
    await repeat(command, scope, stop, {}, "wrote", write);
    await scope.release();
    tell("ended", command, { fence: scope.fence });
  }
}

async function join(command: Command, stop: AbortSignal): Promise<void> {
  const apply = async (scope: Partition, tx: PoolClient) => {
    const start = await scope.position(tx);
    const { rows } = await tx.query<{ position: string }>(NEXT, [scope.partition, start]);
    const last = rows.at(-1);
    if (!last || !(await scope.commit(tx, last.position, start))) return;
    for (const { position } of rows) await tx.query(APPLY, [scope.partition, position, scope.fence, consumer]);
  };
  const run = async (scope: Partition) => {
    const about = { partition: scope.partition, fence: scope.fence };
    tell("started", command, about);
    try {
      await repeat(command, scope, stop, about, "applied", (tx) => apply(scope, tx));
    } finally {
      tell("ended", command, about);
    }
  };
  await leases.join(command.group, run, { signal: stop });
}

async function work(command: Command, signal: AbortSignal): Promise<void> {
  const { queue, concurrency = 1 } = command;
  await leases.work(
    queue,
    async (item, tx) => {
      const { fail = 0, seconds = 0 } = item.payload as Payload;
      if (item.attempt <= fail) {
        tell("failed", command, { item: item.id });
        throw new Error("fails as told");
      }
      await sleep(seconds * 1000, undefined, { signal: item.signal });
      await tx.query("INSERT INTO kit_done (item, consumer) VALUES ($1, $2)", [item.id, consumer]);
      tell("handled", command, { item: item.id });
    },
    { pool, concurrency, signal },
  );
}

async function once(command: Command, signal: AbortSignal): Promise<void> {
  const run = async (scope: Execution) => {
    await pool.query("INSERT INTO kit_once (key, consumer) VALUES ($1, $2)", [command.key, consumer]);
    await sleep((command.seconds ?? 0) * 1000, undefined, { signal: scope.signal });
    if (command.fail) throw new RangeError("fails as told");
    return { by: consumer };
  };
  try {
    tell("once", command, await leases.once(command.key, run, { signal }));
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    tell("once", command, { first: true, state: "failed", result: null });
  }
}

async function hold(command: Command): Promise<void> {
  const held = await Promise.all(Array.from({ length: pool.options.max }, () => pool.connect()));
  tell("held", command);
  await sleep((command.seconds ?? 0) * 1000);
  for (const client of held) client.release();
  tell("free", command);
}

async function misuse(command: Command): Promise<void> {
  const misuses: Record<string, () => Promise<unknown>> = {
    before_open: () => new Leases(dsn).lead("kit:misuse"),
    after_close: async () => {
      const other = await new Leases(dsn).open();
      await other.close();
      await other.lead("kit:misuse");
    },
    open_twice: () => leases.open(),
    no_transaction: () =>
      leases.lead("kit:misuse", async (scope) => {
        const client = await pool.connect();
        await scope.guard(client).finally(() => client.release());
      }),
    ended_scope: async () => {
      const scope = await leases.lead("kit:misuse");
      await scope.release();
      await scope.transaction(pool, async () => {});
    },
    two_threads: () => Promise.all([leases.lead("kit:a", async () => {}), leases.lead("kit:b", async () => {})]),
  };
  const error = await misuses[command.case]?.().then(
    () => null,
    (error: Error) => error.constructor.name,
  );
  tell("misused", command, { case: command.case, error });
}

/** Runs a verb until it ends, or is stopped. */
async function verb(command: Command, run: (command: Command, stop: AbortSignal) => Promise<void>): Promise<void> {
  const stop = new AbortController();
  if (command.id !== undefined) stops.set(command.id, stop);
  try {
    await run(command, stop.signal);
  } catch (error) {
    if (!stop.signal.aborted && (error as Error).name !== "Closed") throw error;
  }
  if (stop.signal.aborted) tell("stopped", command);
}

async function obey(command: Command): Promise<void> {
  const { seconds = 10 } = command;
  if (command.do === "open") await open(command);
  else if (command.do === "lead") await verb(command, lead);
  else if (command.do === "join") await verb(command, join);
  else if (command.do === "work") await verb(command, work);
  else if (command.do === "once") await verb(command, once);
  else if (command.do === "stop") stops.get(command.id as string)?.abort();
  else if (command.do === "hold") await hold(command);
  else if (command.do === "state") tell("state", command, { state: leases.state, session: leases.session ?? null });
  else if (command.do === "misuse") await misuse(command);
  else if (command.do === "drain") {
    await leases.drain(seconds * 1000);
    tell("drained", command);
  } else if (command.do === "close") {
    await leases.close();
    tell("closed", command);
  } else throw new Error(`no such command: ${command.do}`);
}

async function end(): Promise<void> {
  await leases?.drain(10_000);
  process.exit(0);
}

process.once("SIGTERM", end);
createInterface(process.stdin)
  .on("line", (line) => {
    const command: Command = JSON.parse(line);
    obey(command).catch((error) => tell("error", command, { message: String(error.stack ?? error) }));
  })
  .on("close", end);
