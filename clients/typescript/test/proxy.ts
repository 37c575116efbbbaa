import { connect, createServer, type Server, type Socket } from "node:net";
import { discard } from "../src/line.js";

/** A proxy before the server that can fail in the ways of a network. */
export class FaultyProxy {
  readonly #pairs = new Set<[Socket, Socket]>();
  /** Drops everything without a word, also of new connections. */
  isSilent = false;

  /** The next call that has this text is passed on, and its connection reset instead of its answer. */
  swallow: string | undefined;

  private constructor(
    readonly server: Server,
    readonly url: string,
  ) {}

  static async start(target: string): Promise<FaultyProxy> {
    const { hostname, port } = new URL(target);
    const server = createServer((near) => proxy.#accept(near, Number(port), hostname));
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    const url = new URL(target);
    url.host = `127.0.0.1:${(server.address() as { port: number }).port}`;
    const proxy = new FaultyProxy(server, url.href);
    return proxy;
  }

  get connections(): number {
    return this.#pairs.size;
  }

  #accept(near: Socket, port: number, host: string): void {
    const far = connect(port, host);
    const pair: [Socket, Socket] = [near, far];
    this.#pairs.add(pair);
    let swallows = false;
    for (const [from, to] of [pair, [far, near] as const]) {
      from.on("data", (data: Buffer) => {
        if (swallows && from === far) discard(near);
        else if (!this.isSilent) to.write(data);
        if (from === far || this.swallow === undefined || !data.includes(this.swallow)) return;
        swallows = true;
        this.swallow = undefined;
      });
      from.on("error", () => {});
      from.on("close", () => {
        if (this.isSilent) return; // the other side hears nothing of it
        this.#pairs.delete(pair);
        to.destroy();
      });
    }
  }

  /** Resets all connections. */
  cut(): void {
    for (const [near, far] of this.#pairs) {
      discard(near);
      far.destroy();
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.isSilent = false;
    this.cut();
    this.server.close();
  }
}
