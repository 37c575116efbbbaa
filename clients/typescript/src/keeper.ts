import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import type { Client } from "pg";
import { type Action, Core, type State } from "./core.js";
import { Closed, isBrief, isBroken, LeaseError, Lost, NO_TEXT, sqlstate, textOf } from "./errors.js";
import { Calls, type Connection, connect, drop } from "./line.js";
import { abortable, Bell, Turns, within } from "./wait.js";

export interface Settings {
  /** The consumer's name in views and logs. Default: host, pid and a random part. */
  name?: string;
  /** How many ms the session outlives its last heartbeat: longer than any pause to survive. Default: 30 000. */
  ttl?: number;
  /** Whether the first session inherits from a living one of this `name`, which no two processes share. Default: no. */
  takeover?: boolean;
  /** After how many ms `open` throws the error of its last try. Default: 30 000. */
  patience?: number;
  /** A table of events, numbered by position_next: new rows are news. Default: none. */
  watch?: string;
  /** `console`, pino or the like. Default: warnings to console.warn. */
  log?: { info(message: string): void; warn(message: string): void };
  /** Called at each change of the keeper's state. */
  onState?: (state: State) => void;
}

/** `signal` stops the tries: not of a call that takes something, as what a try has taken would have no owner. */
type CallOptions = { once?: boolean; signal?: AbortSignal | undefined };
type Look<T> = (session: string) => Promise<T | undefined>;
type Row = { alive: boolean; trust_ms: number; revision: string; reason: string; session: string };
const OPEN = `SELECT true AS alive, session::text, trust_ms, revision::text
  FROM eskit_lease.session_open($1::text, $2::interval, takeover => $3::boolean)`;
const ANSWER = "SELECT alive, trust_ms, coalesce(revision, 0)::text AS revision, reason FROM eskit_lease";
const WAIT = `${ANSWER}.session_wait($1::uuid, $2::bigint, $3::interval)`;
const BEAT = `${ANSWER}.session_heartbeat($1::uuid)`;
const WATCH = `${ANSWER}.session_watch($1::uuid, $2::regclass)`;
const DRAIN = "SELECT eskit_lease.session_drain($1::uuid)";
const CLOSE = "SELECT eskit_lease.session_close($1::uuid)";
const now = () => performance.now();

/** Keeps a session by a connection of its own, and tells every scope what becomes of it. */
export class Keeper {
  /** @internal */ readonly bells = new Set<Bell>(); // rung at each ask
  /** @internal */ readonly scopes = new Set<{ cancel(why: Lost): void }>();
  /** @internal */ readonly stopping = new AbortController();
  /** @internal */ readonly turns = new Turns();
  /** @internal Fences that the server has not taken back: nothing may begin under them again. */
  readonly spent = new Set<bigint>();
  /** @internal */ readonly ttl: number;
  readonly #settings;
  readonly #connection: Connection; // with a password
  readonly #core: Core;
  readonly #calls: Calls;
  readonly #tasks = new Set<Promise<unknown>>();
  readonly #hurry = new AbortController();
  #line: Client | undefined;
  #dropped: Promise<void> | undefined;
  #timer: NodeJS.Timeout | undefined;
  #state: State | undefined; // undefined: was not opened
  #error: unknown;
  #warned = "";
  #givesUpAt = Infinity;
  #ended: Promise<void> | undefined;
  #replaced: string | undefined; // the session that the keeper is closing, to have another

  constructor(connection: Connection, settings: Settings = {}) {
    const unique = `${hostname()}:${process.pid}:${Math.random().toString(36).slice(2, 10)}`;
    const { name = unique, ttl = 30_000, takeover = false, patience = 30_000, watch, onState } = settings;
    const { log = { info: () => {}, warn: console.warn } } = settings;
    if (takeover && name === unique) throw new TypeError("takeover needs a name that no other process has");
    if (!(ttl > 0)) throw new RangeError("ttl must be positive");
    this.#settings = { name, patience, watch, log, onState };
    this.ttl = ttl;
    this.#connection = connection;
    this.#calls = new Calls(connection);
    this.#core = new Core({ ttl, takeover, watches: watch !== undefined, chance: Math.random });
  }

  /** What the keeper may do now. */
  get state(): State {
    return this.#core.state(now());
  }

  /** The living session's id: a handle, to be kept private. */
  get session(): string | undefined {
    return this.#core.session;
  }

  /** Opens the first session, and resolves once it is trusted. */
  async open(): Promise<this> {
    if (this.#state || this.#ended) throw new TypeError("open() is for once");
    this.#apply(this.#core.tick(now()));
    const bell = this.bell();
    try {
      const { patience, watch } = this.#settings;
      const trusted = this.asks(bell, undefined, async (session) => {
        if (watch) await this.call(session, WATCH, [session, watch]); // throws what heartbeats only warn of
        return true;
      });
      await within(patience, trusted);
      return this;
    } catch (error) {
      await this.close();
      throw this.#error ?? error;
    } finally {
      this.bells.delete(bell);
    }
  }

  /** Begins nothing new, and tells every scope. Closes once all has ended; after `ms` (10 000) it cancels the rest. */
  async drain(ms = 10_000): Promise<void> {
    if (ms < Infinity) setTimeout(() => this.#hurry.abort(), ms).unref();
    this.#ended ??= this.#end();
    await this.#ended;
  }

  /** Cancels every scope, waits for their work, and closes the session: within the TTL, whatever the network does. */
  async close(): Promise<void> {
    await this.drain(0);
  }
  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /** Drains at the first SIGTERM or SIGINT, with at most `ms` (10 000). The next one ends the process. */
  drainOnSignals(ms?: number): void {
    const drain = () => void this.drain(ms);
    for (const signal of ["SIGTERM", "SIGINT"]) {
      process.once(signal, drain);
      this.stopping.signal.addEventListener("abort", () => process.off(signal, drain));
    }
  }

  /** @internal Whether a scope may begin something. Looks at the clock: a blocked loop makes timers late. */
  trusts(session: string): boolean {
    if (this.session === session && now() >= this.#core.trustedUntil) this.#apply(this.#core.tick(now()));
    return this.session === session && now() < this.#core.trustedUntil;
  }

  /** @internal */
  bell(): Bell {
    const bell = new Bell();
    this.bells.add(bell);
    return bell;
  }

  /** @internal Runs a verb, with a bell: one at a time of each name. Drain and close wait for its end. */
  async verb<T>(name: string, signal: AbortSignal | undefined, run: (bell: Bell) => Promise<T>): Promise<T> {
    this.#requireOpen();
    const bell = this.bell();
    const task = this.turns.take(name, () => run(bell), signal);
    this.#tasks.add(task);
    return task.finally(() => {
      this.#tasks.delete(task);
      this.bells.delete(bell);
    });
  }

  /** @internal Looks when new work may begin, and again at each ask, until that finds something. */
  async asks<T>(bell: Bell, signal: AbortSignal | undefined, look: Look<T>): Promise<T> {
    for (;;) {
      const seen = bell.count;
      signal?.throwIfAborted();
      this.#requireOpen();
      try {
        // Trust may come back without an ask.
        const found = this.session && this.state === "trusted" ? await look(this.session) : void bell.ringIn(1_000);
        if (found !== undefined) return found;
      } catch (error) {
        // 55000: not now, as the session has no slot, or is not yet a member of the queue's group.
        const passes = sqlstate(error) === "55000" || isBrief(error);
        if (!passes && !(error instanceof Lost)) throw error;
        if (passes) bell.ringIn(1_000);
        this.warn((error as Error).message);
      }
      await bell.after(seen, signal);
    }
  }

  /** @internal Looks, as `asks`, until the keeper drains or `signal` is aborted. */
  async follow(bell: Bell, signal: AbortSignal | undefined, look: Look<undefined>): Promise<void> {
    await this.asks(bell, signal, look).catch((error) => {
      if (!signal?.aborted && !this.stopping.signal.aborted) throw error;
    });
  }

  #requireOpen(): void {
    if (!this.#state) throw new Closed("the keeper is not open");
    if (this.stopping.signal.aborted || this.state === "closed") throw new Closed("the keeper drains or is closed");
  }

  /** @internal Makes a call about a session on the second connection, again (unless `once`) if its connection breaks,
   * or after an error that passes. Throws Lost when the session is known to have ended. */
  async call<R>(session: string, text: string, values: unknown[], options: CallOptions = {}): Promise<R[]> {
    const { once = false, signal } = options;
    for (let pause = 100; ; pause = Math.min(2 * pause, 1_000, this.ttl / 6)) {
      signal?.throwIfAborted();
      const sent = now();
      if (![this.session, this.#replaced].includes(session)) throw new Lost("the session has ended");
      if (sent >= this.#givesUpAt) throw new Closed("the keeper was closed", this.#error);
      const hear = (alive: boolean, trustMs: number) =>
        this.session === session && this.#apply(this.#core.heard(now(), sent, { alive, trustMs }));
      try {
        const limit = () => Math.min(now() + this.ttl / 2, this.#givesUpAt);
        const rows = await this.#calls.ask<R & Partial<Row>>(text, values, limit);
        const { reason = "", trust_ms } = rows[0] ?? {};
        if (["expired", "unknown_session"].includes(reason)) throw new Lost(reason);
        if (typeof trust_ms === "number") hear(true, trust_ms);
        return rows;
      } catch (error) {
        this.#error = error;
        if (error instanceof Lost || sqlstate(error) === "LF003") {
          hear(false, 0);
          throw new Lost("the session has ended", error);
        }
        if (once || !(isBroken(error) || isBrief(error))) throw error;
        this.warn(`a call is made again: ${(error as Error).message}`);
      }
      await sleep(pause * (0.5 + 0.5 * Math.random()));
    }
  }

  /** @internal Makes a call that gives something back; its text has no FROM. If the session or the keeper has ended,
   * that did. The server's wait for fenced transactions is limited: it does not notice that a call is given up. */
  async giveBack<R>(session: string, text: string, values: unknown[]): Promise<R[]> {
    const limited = `${text} FROM set_config('lock_timeout', '${Math.floor(this.ttl / 4)} ms', true)`;
    return this.call<R>(session, limited, values).catch((error) => {
      if (!(error instanceof LeaseError)) throw error;
      if (error instanceof Closed) this.warn("closes before all was given back: the session may end only by its TTL");
      return [];
    });
  }

  /** @internal Closes a session that may have what no scope has, and opens another. */
  async replace(session: string, why: string): Promise<void> {
    if (this.session !== session) return;
    this.warn(`closes its session, and opens another: ${why}`);
    this.#replaced = session;
    this.#apply(this.#core.replaced(now()));
    await this.returns(session, CLOSE, [session]);
    this.#replaced = undefined;
  }

  /** @internal Gives something back, and returns the answer; undefined, and logs, if the server refuses that. LF001,
   * 42704: it has ended already. */
  async returns<R>(session: string, text: string, values: unknown[]): Promise<R[] | undefined> {
    return this.giveBack<R>(session, text, values).catch((error) => {
      if (["LF001", "42704"].includes(sqlstate(error) ?? "")) return [];
      this.warn(`could not be given back: ${textOf(error)}`);
      return undefined;
    });
  }

  /** @internal Gives something back as failed, by an error whose text is the third value. */
  async fails(session: string, text: string, values: unknown[], error: unknown): Promise<boolean> {
    const told = (what: string) => this.returns(session, text, values.toSpliced(2, 0, what));
    return !!((await told(textOf(error))) ?? (await told(NO_TEXT)));
  }

  async #end(): Promise<void> {
    const tell = async (text: string) => {
      if (this.session) await this.returns(this.session, text, [this.session]);
    };
    const idle = async () => {
      while (this.#tasks.size > 0) await Promise.allSettled(this.#tasks);
    };
    this.#apply(this.#core.drain(now()));
    tell(DRAIN);
    this.stopping.abort();
    for (const bell of this.bells) bell.ring();
    await abortable(idle(), this.#hurry.signal).catch(() => {});
    this.#givesUpAt = now() + this.ttl / 2;
    for (const scope of this.scopes) scope.cancel(new Lost("the keeper was closed"));
    await within(this.ttl / 2, idle()).catch(() => this.warn("closes, although work has not ended"));
    this.#givesUpAt = now() + 0.4 * this.ttl;
    await tell(CLOSE);
    this.#apply(this.#core.close());
    await Promise.all([this.#dropped, this.#calls.close()]);
  }

  #apply(actions: Action[]): void {
    for (const action of actions) {
      if (action.do === "connect") this.#connect();
      else if (action.do === "disconnect") this.#drop();
      else if (action.do === "cancel") for (const scope of this.scopes) scope.cancel(new Lost("the trust is over"));
      else if (action.do === "ask") for (const bell of this.bells) bell.ring();
      else if (action.do === "warn")
        this.warn(action.why === "taken" ? "another process ended the session" : String(this.#error));
      else this.#ask(action);
    }
    clearTimeout(this.#timer);
    const ms = Math.ceil(this.#core.deadline() - now());
    // After a blocked loop, answers that have arrived meanwhile come first.
    if (ms < Infinity) this.#timer = setTimeout(() => setImmediate(() => this.#apply(this.#core.tick(now()))), ms);
    const { state, session } = this;
    if (state === this.#state) return;
    this.#state = state;
    const { name, log, onState } = this.#settings;
    const text = `eskit_lease: ${name} is ${state}${session ? `, session ${session}` : ""}`;
    if (state === "doubting" || state === "lost") log.warn(text);
    else log.info(text);
    queueMicrotask(() => onState?.(state)); // an error of which is not the keeper's
  }

  async #connect(): Promise<void> {
    await this.#dropped;
    const line = await connect(this.#connection, now() + this.ttl / 2).catch((error: Error) => error);
    if (line instanceof Error) {
      this.warn(`no connection: ${line.message}`, line);
      this.#apply(this.#core.disconnected(now()));
      return;
    }
    this.#line = line.once("end", () => this.#lose(line, "closed"));
    this.#apply(this.#core.connected(now()));
    if (this.state === "closed") this.#drop();
  }

  /** Makes a call of the keeper's connection. */
  async #ask(action: Action): Promise<void> {
    const { name, watch } = this.#settings;
    const line = this.#line as Client;
    let [text, values]: [string, unknown[]] = watch ? [WATCH, [this.session, watch]] : [BEAT, [this.session]];
    if (action.do === "open") [text, values] = [OPEN, [name, `${this.ttl} ms`, action.takeover]];
    if (action.do === "wait") [text, values] = [WAIT, [this.session, action.revision, `${action.timeoutMs} ms`]];
    let answer = await line.query<Row>(text, values).catch((error: Error) => error);
    if (text === WATCH && answer instanceof Error && !isBroken(answer) && sqlstate(answer) !== "LF003") {
      this.warn(`cannot watch ${watch}: ${answer.message}`);
      answer = await line.query<Row>(BEAT, [this.session]).catch((error: Error) => error); // trust must not end by it
    }
    if (line !== this.#line) return;
    if (answer instanceof Error) {
      this.#error = answer;
      if (isBroken(answer)) this.#lose(line, answer.message);
      else this.#apply(this.#core.failed(now(), sqlstate(answer) ?? ""));
      return;
    }
    this.#warned = "";
    const { trust_ms, revision, ...row } = answer.rows[0] as Row;
    this.#apply(this.#core.answered(now(), { ...row, trustMs: trust_ms, revision: BigInt(revision) }));
  }

  #lose(line: Client, why: string): void {
    if (line !== this.#line) return;
    this.warn(`lost connection: ${why}`);
    this.#drop();
    this.#apply(this.#core.disconnected(now()));
  }

  #drop(): void {
    if (this.#line) this.#dropped = drop(this.#line);
    this.#line = undefined;
  }

  /** @internal Logs, but not the same again and again. */
  warn(text: string, error?: unknown): void {
    if (error) this.#error = error;
    if (text !== this.#warned) this.#settings.log.warn(`eskit_lease: ${this.#settings.name}: ${text}`);
    this.#warned = text;
  }
}
