import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { type Action, type Answer, Core } from "../src/core.js";

type Given = { answer?: Record<string, unknown>; sent?: number; sqlstate?: string };
type Step = {
  at: number;
  event: string | Record<string, Given>;
  actions?: unknown[];
  state: string;
  trusted_until?: number;
  deadline?: number | null;
};
type Settings = { ttl_ms: number; takeover?: boolean; watches?: boolean; random?: number };
type Case = { case: string; settings: Settings; steps: Step[] };

// The tests run from the directory that `check` fills, with the vectors beside them.
const cases: Case[] = JSON.parse(readFileSync("vectors/keeper.json", "utf8"));

function answer(given: Record<string, unknown> = {}): Answer {
  const { alive = true, trust_ms = 0, revision = 0, ...more } = given;
  return { ...more, alive, trustMs: trust_ms, revision: BigInt(revision as number) } as Answer;
}

function happen(core: Core, at: number, event: Step["event"]): Action[] {
  const [name, given] = typeof event === "string" ? [event, {}] : (Object.entries(event)[0] as [string, Given]);
  if (name === "answered") return core.answered(at, answer(given.answer));
  if (name === "heard") return core.heard(at, given.sent as number, answer(given.answer));
  if (name === "failed") return core.failed(at, given.sqlstate as string);
  if (name === "start") return core.tick(at);
  return core[name as "connected" | "disconnected" | "tick" | "drain" | "close"](at);
}

/** Returns an action as the vectors write it: a name, or a name with what it is given. */
function told(action: Action): unknown {
  if (action.do === "open") return { open: { takeover: action.takeover } };
  if (action.do === "wait") return { wait: { timeout_ms: action.timeoutMs, revision: Number(action.revision) } };
  return action.do === "warn" ? { warn: { why: action.why } } : action.do;
}

assert.ok(cases.length > 0);
for (const one of cases) {
  test(`vector: ${one.case}`, () => {
    const { ttl_ms: ttl, takeover = false, watches = false, random = 1 } = one.settings;
    const core = new Core({ ttl, takeover, watches, chance: () => random });
    for (const step of one.steps) {
      const where = JSON.stringify(step);
      assert.deepEqual(happen(core, step.at, step.event).map(told), step.actions ?? [], where);
      assert.equal(core.state(step.at), step.state, where);
      if (step.trusted_until !== undefined) assert.equal(core.trustedUntil, step.trusted_until, where);
      if (step.deadline !== undefined) assert.equal(core.deadline(), step.deadline ?? Infinity, where);
    }
  });
}
