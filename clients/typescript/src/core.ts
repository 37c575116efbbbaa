// The protocol of the keeper's connection, without a connection: events with their times in, actions out. Times are ms
// of a monotonic clock. The page of the protocol says it in words, and the vectors say what each library's core does.

const [MIN_CONNECT_PAUSE, MAX_CONNECT_PAUSE] = [100, 1_000];
const [FIRST_REOPEN, LONGEST_REOPEN] = [1_000, 60_000];
const BEAT = 1_000; // between heartbeats where waits are refused
const SHORTEST_WAIT = 100; // a shorter one would be a poll
const ERROR_PAUSE = 1_000;
const ENDED = ["LF003", "55000"]; // 55000: a server before 0.3.0
const CUT_SHORT = "57014";

/** `doubting`: the session may have ended, and all work is cancelled. `lost`: it has ended, and another will open. */
export type State = "starting" | "trusted" | "doubting" | "lost" | "draining" | "closed";
/** What a heartbeat, a wait or session_open answers. */
export type Answer = { alive: boolean; trustMs: number; revision: bigint; reason?: string; session?: string };
/** What the keeper must do. `cancel` and `ask` are for every scope. */
export type Action =
  | { do: "connect" | "disconnect" | "beat" | "cancel" | "ask" }
  | { do: "open"; takeover: boolean }
  | { do: "wait"; timeoutMs: number; revision: bigint }
  | { do: "warn"; why: string };
/** `watches`: a heartbeat names the table to watch, and the first one begins it. */
type CoreSettings = { ttl: number; takeover: boolean; watches: boolean; chance: () => number };
type Call = { kind: "open" | "wait" | "beat"; sent: number; session: string | undefined };

export class Core {
  session: string | undefined;
  trustedUntil = -Infinity;
  #actions: Action[] = [];
  #revision = 0n;
  #connected = false;
  #draining = false;
  #closed = false;
  #call: Call | undefined; // under way
  #heard = -Infinity; // when the newest call that was answered was made
  #handedOut = false; // scopes may be trusting
  #hadSession = false;
  #openedAt = 0;
  #attempts = 0;
  #nextConnect = 0; // the first tick connects
  #nextCall = 0;
  #noWaitBefore = 0;
  #longestWait = Infinity;
  #reopenPause = FIRST_REOPEN;
  #asks = false; // a heartbeat must tell first whether the session still lives

  constructor(readonly settings: CoreSettings) {}

  state(now: number): State {
    if (this.#closed) return "closed";
    if (this.session === undefined) return this.#hadSession ? "lost" : "starting";
    if (now >= this.trustedUntil) return "doubting";
    return this.#draining ? "draining" : "trusted";
  }

  /** Returns when the next `tick` is needed; Infinity if never. */
  deadline(): number {
    if (this.#closed) return Infinity;
    const next = this.#call
      ? this.#call.sent + this.settings.ttl / 2
      : this.#connected
        ? this.#nextCall
        : this.#nextConnect;
    return Math.min(next, this.#handedOut ? this.trustedUntil : Infinity);
  }

  connected(now: number): Action[] {
    this.#connected = true;
    this.#nextConnect = this.#longestWait = Infinity;
    this.#noWaitBefore = 0;
    this.#asks = this.session !== undefined;
    return this.tick(now);
  }

  /** The connection is lost, or could not be made. */
  disconnected(now: number): Action[] {
    this.#loseConnection(now);
    return this.tick(now);
  }

  /** The answer of the call that is under way. */
  answered(now: number, answer: Answer): Action[] {
    const call = this.#call as Call;
    this.#call = undefined;
    this.#attempts = 0;
    this.#asks = false;
    if (call.session !== this.session) return this.tick(now); // that session is known to have ended meanwhile
    if (!answer.alive) return this.#end(now);
    if (call.kind === "open") {
      this.session = answer.session;
      this.#revision = answer.revision;
      this.#openedAt = now;
      this.#hadSession = true;
      this.#asks = this.settings.watches;
    }
    if (answer.reason === "wait_limit") this.#noWaitBefore = now + this.settings.ttl / 3;
    this.#believe(now, call.sent, answer.trustMs, answer.revision > this.#revision);
    if (answer.revision > this.#revision) this.#revision = answer.revision;
    else if (call.kind !== "open" && now < this.#noWaitBefore)
      this.#nextCall = call.sent + Math.min(BEAT, this.settings.ttl / 3) * (0.75 + 0.25 * this.settings.chance());
    else if (call.kind === "wait" && now < call.sent + SHORTEST_WAIT) this.#nextCall = call.sent + SHORTEST_WAIT;
    return this.tick(now);
  }

  /** The call that is under way raised an error of the server, on a connection that is still good. */
  failed(now: number, sqlstate: string): Action[] {
    const call = this.#call as Call;
    this.#call = undefined;
    if (call.session !== this.session) return this.tick(now);
    if (ENDED.includes(sqlstate) && call.kind !== "open") return this.#end(now);
    if (sqlstate === CUT_SHORT && call.kind === "wait") {
      this.#attempts = 0;
      this.#longestWait = (now - call.sent) / 2;
      return this.tick(now);
    }
    this.#nextCall = now + Math.min(ERROR_PAUSE, this.settings.ttl / 6);
    this.#actions.push({ do: "warn", why: sqlstate });
    return this.tick(now);
  }

  /** An answer of another connection, to a call of the present session that was made at `sent`. */
  heard(now: number, sent: number, answer: Pick<Answer, "alive" | "trustMs">): Action[] {
    if (this.session === undefined) return [];
    if (!answer.alive) return this.#end(now);
    this.#believe(now, sent, answer.trustMs);
    return this.tick(now);
  }

  /** Time has passed. */
  tick(now: number): Action[] {
    if (now >= this.trustedUntil) this.#cancel();
    if (this.#call && now >= this.#call.sent + this.settings.ttl / 2) {
      this.#loseConnection(now);
      this.#actions.push({ do: "disconnect" });
    }
    if (!this.#closed && !this.#call) this.#goOn(now);
    return this.#actions.splice(0);
  }

  drain(now: number): Action[] {
    this.#draining = true;
    return this.session === undefined ? this.close() : this.tick(now);
  }

  /** The keeper closes the session itself, and opens another at once. */
  replaced(now: number): Action[] {
    if (this.session === undefined) return [];
    this.trustedUntil = -Infinity; // no other process has ended it
    return this.#end(now);
  }

  /** The session was closed, or shall end by itself. */
  close(): Action[] {
    this.#cancel();
    if (this.#connected) this.#actions.push({ do: "disconnect" });
    this.#closed = true;
    this.#connected = false;
    this.#call = this.session = undefined;
    return this.#actions.splice(0);
  }

  /** Makes the next connection or call, if its time has come. */
  #goOn(now: number): void {
    if (now < (this.#connected ? this.#nextCall : this.#nextConnect)) return;
    const { session } = this;
    if (!this.#connected) {
      this.#nextConnect = Infinity;
      this.#actions.push({ do: "connect" });
      return;
    }
    if (this.#longestWait < SHORTEST_WAIT) {
      this.#noWaitBefore = now + this.settings.ttl / 3;
      this.#longestWait = Infinity;
    }
    const kind = session === undefined ? "open" : this.#asks || now < this.#noWaitBefore ? "beat" : "wait";
    this.#call = { kind, sent: now, session };
    const timeoutMs = Math.trunc(Math.min(this.settings.ttl / (now < this.trustedUntil ? 3 : 10), this.#longestWait));
    if (kind === "open") this.#actions.push({ do: kind, takeover: this.settings.takeover && !this.#hadSession });
    else if (kind === "beat") this.#actions.push({ do: kind });
    else this.#actions.push({ do: kind, timeoutMs, revision: this.#revision });
  }

  /** Counts the trust from before the call. All scopes ask when it is back, or if there is `news`. */
  #believe(now: number, sent: number, trustMs: number, news = false): void {
    if (sent >= this.#heard) {
      this.#heard = sent;
      this.trustedUntil = sent + trustMs;
    }
    const isBack = !this.#handedOut && now < this.trustedUntil;
    if (isBack || news) this.#actions.push({ do: "ask" });
    if (isBack) this.#handedOut = true;
  }

  /** The session has ended. While it was trusted, only another process can have ended it, which may have the same name:
   * two such processes must not end each other for ever. */
  #end(now: number): Action[] {
    this.#cancel();
    this.session = undefined;
    if (this.#draining) return this.close();
    this.#nextCall = now;
    if (now < this.trustedUntil) {
      if (now >= this.#openedAt + LONGEST_REOPEN) this.#reopenPause = FIRST_REOPEN;
      this.#nextCall += this.#reopenPause * (0.5 + 0.5 * this.settings.chance());
      this.#reopenPause = Math.min(2 * this.#reopenPause, LONGEST_REOPEN);
      this.#actions.push({ do: "warn", why: "taken" });
    }
    this.trustedUntil = -Infinity;
    return this.tick(now);
  }

  #cancel(): void {
    if (this.#handedOut) this.#actions.push({ do: "cancel" });
    this.#handedOut = false;
  }

  /** The first new try is at once. Later ones come after a pause that doubles. */
  #loseConnection(now: number): void {
    const pause = Math.min(MIN_CONNECT_PAUSE * 2 ** (this.#attempts - 1), MAX_CONNECT_PAUSE, this.settings.ttl / 6);
    this.#nextConnect = now + (this.#attempts > 0 ? pause * (0.5 + 0.5 * this.settings.chance()) : 0);
    this.#connected = false;
    this.#call = undefined;
    this.#attempts = Math.min(this.#attempts + 1, 16);
  }
}
