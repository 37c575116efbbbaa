/** Returns the SQLSTATE of a driver's error, also below the errors that an ORM puts around it. */
export function sqlstate(error: unknown): string | undefined {
  if (!(error instanceof Error)) return undefined;
  const { code, severity, cause } = error as Error & { code?: string; severity?: string };
  return severity === undefined ? sqlstate(cause) : code;
}

/** No connection could be made, whatever the server says of it: too many connections, or a token that has expired. */
export class NoConnection extends Error {}

/** Whether the connection is lost: no error of the server, or one that ends the connection. */
export const isBroken = (error: unknown) =>
  error instanceof NoConnection || /^(08|57P0|25P03)/.test(sqlstate(error) ?? "08");

/** Whether an error of the server passes by itself: ask again. 25006: a standby that is about to be the primary. */
export const isBrief = (error: unknown) => /^(25006|40|53|55P03|55006|57014|58)/.test(sqlstate(error) ?? "");

/** What stands for a text that cannot be made, or that the server refuses, as its encoding lacks a letter. */
export const NO_TEXT = "the error's text could not be stored";

/** Returns an error's text as the server takes it, of whatever was thrown. The driver replaces lone surrogates. */
export function textOf(error: unknown): string {
  try {
    return String(error).replaceAll("\0", "\uFFFD");
  } catch {
    return NO_TEXT;
  }
}

/** An error of a lease, with the driver's error as `cause`. */
export abstract class LeaseError extends Error {
  /** The SQLSTATE of `cause`, if the server raised it. */
  readonly code: string | undefined;
  constructor(message: string, cause?: unknown) {
    super(message, { cause });
    this.name = new.target.name;
    this.code = sqlstate(cause);
  }
}
/** The scope was cancelled, or its session has ended: begin anew. The keeper already does. */
export class Lost extends LeaseError {}
/** LF001, 55P03 or 40001: the transaction is rolled back. Ask again. */
export class Refused extends LeaseError {}
/** The connection broke before COMMIT was answered: the transaction may still commit. Its scope has ended. */
export class Unsure extends LeaseError {}
/** The keeper is not open, drains or is closed. */
export class Closed extends LeaseError {}

/** Returns what to throw for an error of work whose scope was cancelled meanwhile. */
export const cancelled = (error: unknown) =>
  error instanceof LeaseError ? error : new Lost("the scope was cancelled", error);

/** Returns what to throw for an error. 55000 of a check of ours is the LF003 of a server before 0.3.0. */
export function translated(error: unknown, isCheck = false): unknown {
  const code = error instanceof LeaseError ? "" : (sqlstate(error) ?? "");
  if (code === "LF003" || (isCheck && code === "55000")) return new Lost("the session has ended", error);
  return ["LF001", "55P03", "40001"].includes(code) ? new Refused((error as Error).message, error) : error;
}
