import { once } from "node:events";
import type { Socket } from "node:net";
import { setImmediate } from "node:timers/promises";
import pg, { type Client } from "pg";
import { Closed, isBroken, NoConnection } from "./errors.js";
import { Turns, within } from "./wait.js";

/** A connection string; undefined for the driver's environment (PGHOST ..); or a function that makes a new client, for
 * TLS, or for a token that expires. The keeper connects and ends the client. */
export type Connection = string | undefined | (() => Client | Promise<Client>);

const IDLE = 10_000;
const now = () => performance.now();
/** The sockets below TLS. */
const sockets = new WeakMap<Client, Socket>();
/** The clients that the driver uses no more, as after the server's last words. */
const ended = new WeakSet<Client>();

/** Makes a connection, or throws at the time `until`. */
export async function connect(connection: Connection, until: number): Promise<Client> {
  const string = { connectionString: connection as string, fallback_application_name: "eskit_lease" };
  const made = typeof connection === "function" ? connection() : new pg.Client(string);
  const client = await within(until - now(), Promise.resolve(made));
  client.on("error", () => ended.add(client)); // the call that is under way fails
  sockets.set(client, client.connection.stream as Socket);
  try {
    await within(until - now(), client.connect());
    return client;
  } catch (error) {
    await drop(client);
    throw error;
  }
}

/** Resets a connection. While it shuts down, as its peer has, Node.js refuses that (EINVAL), and would never close it. */
export function discard(socket: Socket): void {
  if (socket.writableEnded && !socket.writableFinished) socket.destroy();
  else socket.resetAndDestroy();
}

/** Closes the socket without a word, which the peer may never answer. Resolves once it is closed. With `reset` it also
 * discards what was sent and not delivered: else the kernel would go on sending it, and the call could arrive when
 * nothing wants it any more. */
export async function drop(client: Client, reset = false): Promise<void> {
  const socket = sockets.get(client);
  if (reset && socket?.remoteAddress) discard(socket); // only TCP has an address
  const stream = client.connection.stream.destroy();
  if (!stream.closed) await once(stream, "close");
}

function isEnded(client: Client): boolean {
  const stream = client.connection.stream as Socket;
  return ended.has(client) || stream.readableEnded || stream.destroyed;
}

/** Resolves once the event loop has read what has arrived, as the end of a connection: a timer or a blocked loop may be
 * before it. The second turn is for a caller that is past the reads of the first. */
async function heard(): Promise<void> {
  await setImmediate();
  await setImmediate();
}

/** The second connection: one call at a time. It opens with a call, and closes after 10 s without one. */
export class Calls {
  readonly #turns = new Turns();
  #client: Client | undefined;
  #idle: NodeJS.Timeout | undefined;
  #isClosed = false;

  constructor(readonly connection: Connection) {}

  /** Gives the call up, and drops the connection, at the time that `limit` tells when its turn has come. */
  ask<Row extends object>(text: string, values: unknown[], limit: () => number): Promise<Row[]> {
    return this.#turns.take("", async () => {
      clearTimeout(this.#idle);
      if (this.#isClosed) throw new Closed("the keeper is closed");
      try {
        const until = limit();
        if (this.#client) await heard();
        if (this.#client && isEnded(this.#client)) await this.#drop();
        this.#client ??= await connect(this.connection, until).catch((cause: Error) => {
          throw new NoConnection(`no connection: ${cause.message}`, { cause });
        });
        return (await within(until - now(), this.#client.query<Row>(text, values))).rows;
      } catch (error) {
        if (isBroken(error)) await this.#drop(true);
        throw error;
      } finally {
        this.#idle = setTimeout(() => this.#drop(), IDLE).unref();
      }
    });
  }

  /** Makes no more calls. Resolves once the connection is closed, also one that is just being made. */
  async close(): Promise<void> {
    this.#isClosed = true;
    await this.#turns.take("", () => this.#drop());
    clearTimeout(this.#idle);
  }

  async #drop(reset = false): Promise<void> {
    const client = this.#client;
    this.#client = undefined;
    if (client) await drop(client, reset);
  }
}
