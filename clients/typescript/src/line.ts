import { once } from "node:events";
import pg, { type Client } from "pg";
import { within } from "./wait.js";

/** A connection string; undefined for the driver's environment (PGHOST ..); or a function that makes a new client, for
 * TLS, or for a token that expires as `password`. The keeper connects and ends the client. */
export type Connection = string | undefined | (() => Client);

export function make(connection: Connection): Client {
  if (typeof connection === "function") return connection();
  return new pg.Client({ connectionString: connection as string, fallback_application_name: "eskit_lease" });
}

/** Makes the connection within `ms`, or throws. */
export async function connect(connection: Connection, ms: number): Promise<Client> {
  const client = make(connection);
  client.on("error", () => {}); // the call that is under way fails
  const connected = within(ms, client.connect());
  await connected.catch(() => drop(client));
  return connected.then(() => client);
}

/** Closes the socket without a word, which the peer may never answer. Resolves once it is closed. */
export async function drop(client: Client): Promise<void> {
  const stream = client.connection.stream.destroy();
  if (!stream.closed) await once(stream, "close");
}
