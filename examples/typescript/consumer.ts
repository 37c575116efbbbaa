// A competing consumer, with node-postgres: applies the events of its partitions. ../README.md explains steps (1) to (9).
import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import pg from "pg";

const GROUP = process.env.CONSUMER_GROUP ?? "ledger";
const CONSUMER = process.env.CONSUMER ?? `typescript-${hostname()}-${process.pid}`;
const TTL = Number(process.env.TTL ?? 10);

const RELEASE = "SELECT eskit_lease.group_release($1, partition, fence) FROM eskit_lease.group_assignment($1, $2)";
const OWNED = `SELECT array_agg(partition) AS partitions, array_agg(fence) AS fences
               FROM eskit_lease.group_assignment($1, $2) WHERE state = 'owned'`;
const NEWS = `SELECT mine.*
              FROM unnest($1::int[], $2::bigint[]) AS mine (partition, fence), eskit_lease.cursor_position($3, partition) AS done
              WHERE EXISTS (SELECT FROM events AS e WHERE e.partition = mine.partition AND e.position > done
                            AND e.position < eskit_lease.position_horizon()) ORDER BY random()`;
const READ = `SELECT position, account, cents, done FROM eskit_lease.cursor_position($1, $2) AS done, events
              WHERE partition = $2 AND position > done AND position < eskit_lease.position_horizon()
              ORDER BY position LIMIT 50`;
const APPLY = "INSERT INTO ledger (position, account, cents, consumer) VALUES ($1, $2, $3, $4)";

// A bigint is a string: positions grow beyond what a number can represent.
type Standing = { alive: boolean; trust_ms: number; revision: string; reason: string; retry_ms: number };
type Shares = { partitions: number[] | null; fences: string[] | null };
type Share = { partition: number; fence: string };
type Event = { position: string; account: string; cents: string; done: string };

let stopping = false;
process.on("SIGTERM", () => (stopping = true));

class Session {
  id = "";
  revision = "";
  #trustedUntil = 0;
  #nextHeartbeat = 0;
  constructor(readonly db: pg.Client) {}

  async open() {
    const open = "SELECT session FROM eskit_lease.session_open($1, $2, takeover => true)";
    this.id = (await this.db.query(open, [CONSUMER, `${TTL} s`])).rows[0].session; // (1)
    await this.heartbeat();
  }

  async #ask(sql: string, ...values: unknown[]) {
    const started = performance.now(); // (3) from before the call, as the answer may be long on its way
    const answer = (await this.db.query<Standing>(sql, values)).rows[0]!;
    if (!answer.alive) throw new Error(`the session has ended: ${answer.reason}`);
    this.#trustedUntil = started + answer.trust_ms;
    this.#nextHeartbeat = started + answer.trust_ms / 3;
    this.revision = answer.revision;
    return answer;
  }

  async wait(timeout: string | null) {
    const answer = await this.#ask("SELECT * FROM eskit_lease.session_wait($1, $2, $3)", this.id, this.revision, timeout);
    if (answer.reason === "wait_limit") await sleep(answer.retry_ms); // at once, as too many are waiting: wait here
  }

  heartbeat = () => this.#ask("SELECT * FROM eskit_lease.session_watch($1, 'events')", this.id); // it watches, too
  trusted = () => performance.now() < this.#trustedUntil;
  heartbeatDue = () => performance.now() >= this.#nextHeartbeat;
}

async function consume(db: pg.Client) {
  const session = new Session(db);
  await session.open();
  await db.query("SELECT eskit_lease.group_join($1, $2)", [GROUP, session.id]); // (2)
  let owned: Shares | undefined;
  let askedAt: string | undefined;
  while (!stopping) {
    if (!owned || askedAt !== session.revision) { // (4)
      askedAt = session.revision;
      await db.query(`${RELEASE} WHERE state = 'revoking'`, [GROUP, session.id]); // no work on them is in hand
      owned = (await db.query<Shares>(OWNED, [GROUP, session.id])).rows[0]!;
    }
    const news = (await db.query<Share>(NEWS, [owned.partitions, owned.fences, GROUP])).rows;
    for (const { partition, fence } of news) {
      if (stopping || askedAt !== session.revision || !session.trusted()) break; // (3)
      if (!(await applyBatch(db, partition, fence))) askedAt = undefined;
      if (session.heartbeatDue()) await session.heartbeat(); // (7)
    }
    await (news.length > 0 && session.trusted() ? session.heartbeat() : session.wait(news.length > 0 ? "100 ms" : null));
  }
  await db.query("SELECT eskit_lease.session_drain($1)", [session.id]); // (8)
  await db.query(RELEASE, [GROUP, session.id]);
  await db.query("SELECT eskit_lease.session_close($1)", [session.id]);
}

// (5) Applies the next events of a partition and moves its position, in one fenced transaction. False: refused.
async function applyBatch(db: pg.Client, partition: number, fence: string) {
  try {
    await db.query("BEGIN");
    const batch = (await db.query<Event>(READ, [GROUP, partition])).rows, last = batch.at(-1);
    const commit = "SELECT eskit_lease.cursor_commit($1, $2, $3, $4, $5) AS moved";
    if (last && (await db.query(commit, [GROUP, partition, last.position, fence, last.done])).rows[0].moved) {
      for (const event of batch) await db.query(APPLY, [event.position, event.account, event.cents, CONSUMER]);
    }
    await db.query("COMMIT");
    return true;
  } catch (error) { // (6)
    if (!["LF001", "55P03", "40001"].includes((error as pg.DatabaseError).code ?? "")) throw error;
    await db.query("ROLLBACK");
    return false;
  }
}

while (!stopping) {
  const patience = { connectionTimeoutMillis: TTL * 1000, query_timeout: TTL * 1000 }; // by default both wait without end
  const db = new pg.Client({ connectionString: process.env.DATABASE_URL, ...patience });
  db.on("error", () => {}); // a lost connection: the current query fails, or the next one
  try {
    await db.connect();
    await consume(db);
  } catch (error) { // (9)
    console.error(`${CONSUMER} begins anew: ${(error as Error).message}`);
    await sleep(1000);
  } finally {
    await db.end().catch(() => {});
  }
}
