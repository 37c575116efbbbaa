"""The core does what ../../vectors says."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from eskit_lease._core import Action, Answer, Core

VECTORS = Path(__file__).parents[2] / "vectors" / "keeper.json"
CASES = json.loads(VECTORS.read_text()) if VECTORS.exists() else []  # an sdist has none


def told(actions: list[Action]) -> list[Any]:
    """Returns actions as the vectors write them: a name, or a name with what it is given."""
    plain = [{key: value for key, value in vars(action).items() if value is not None} for action in actions]
    return [one["kind"] if len(one) == 1 else {one.pop("kind"): one} for one in plain]


def happen(core: Core, at: float, event: Any) -> list[Action]:
    name, given = (event, {}) if isinstance(event, str) else next(iter(event.items()))
    given = dict(given)
    if "answer" in given:
        given["answer"] = Answer(**given["answer"])
    actions: list[Action] = getattr(core, "tick" if name == "start" else name)(at, **given)
    return actions


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
