"""The core does what ../../vectors says."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from eskit_lease._core import Action, Core

VECTORS = Path(__file__).parents[2] / "vectors" / "keeper.json"
CASES = json.loads(VECTORS.read_text()) if VECTORS.exists() else []  # an sdist has none


GIVEN = {"open": ["takeover"], "wait": ["revision", "timeout_ms"], "warn": ["why"]}


def told(actions: list[Action]) -> list[Any]:
    """Returns actions as the vectors write them: a name, or a name with what it is given."""
    return [{kind: dict(zip(GIVEN[kind], given, strict=True))} if given else kind for kind, *given in actions]


def happen(core: Core, at: float, event: Any) -> list[Action]:
    name, given = (event, {}) if isinstance(event, str) else next(iter(event.items()))
    given = dict(given)
    if name == "heard":
        given |= given.pop("answer")
    if name in ("answered", "failed", "heard", "disconnected"):
        given["now"] = at
    if name not in ("start", "tick"):
        getattr(core, name)(**given)
    return core.tick(at)


@pytest.mark.parametrize("case", CASES, ids=[case["case"] for case in CASES])
def test_vectors(case: dict[str, Any]) -> None:
    given = case["settings"]
    core = Core(
        given["ttl_ms"],
        given.get("takeover", False),
        given.get("watches", False),
        lambda: float(given.get("random", 1)),
    )
    for step in case["steps"]:
        assert told(happen(core, step["at"], step["event"])) == step.get("actions", []), step
        assert core.state(step["at"]) == step["state"], step
        if "trusted_until" in step:
            assert core.trusted_until == step["trusted_until"], step
        if "deadline" in step:
            assert core.deadline() == (math.inf if step["deadline"] is None else step["deadline"]), step


def finds(case: dict[str, Any]) -> bool:
    """Whether a case fails on the core as it is."""
    try:
        test_vectors(case)
    except AssertionError:
        return True
    return False


def trust_counts_from_the_answer(core: Core, now: float, sent: float, *given: Any) -> None:
    believe(core, now, now, *given)


def an_end_cancels_nothing(core: Core, now: float) -> None:
    core._handed_out = False
    end(core, now)


def a_lost_connection_is_a_lost_session(core: Core, now: float) -> None:
    disconnected(core, now)
    core.session = None


def each_connection_takes_over(core: Core) -> None:
    core.takeover, core._had_session = True, False
    connected(core)


believe, end, disconnected, connected = Core._believe, Core._end, Core.disconnected, Core.connected
BROKEN = {
    "_believe": trust_counts_from_the_answer,
    "_end": an_end_cancels_nothing,
    "disconnected": a_lost_connection_is_a_lost_session,
    "connected": each_connection_takes_over,
}


@pytest.mark.skipif(not CASES, reason="an sdist has no vectors")
@pytest.mark.parametrize(("rule", "broken"), BROKEN.items(), ids=BROKEN)
def test_a_wrong_core_fails(monkeypatch: pytest.MonkeyPatch, rule: str, broken: Any) -> None:
    """A rule of the core is broken, and the vectors find it."""
    monkeypatch.setattr(Core, rule, broken)
    assert any(finds(case) for case in CASES)
