"""The core of the client library for Python does what clients/vectors say."""

import json
import sys

import pytest
from conftest import ROOT, once

sys.path.insert(0, str(ROOT / "clients/python"))
from eskit_lease._core import Answer, Core  # noqa: E402

pytestmark = once
CASES = json.loads((ROOT / "clients/vectors/keeper.json").read_text())


def told(actions):
    """Returns actions as the vectors write them: a name, or a name with what it is given."""
    plain = [{key: value for key, value in vars(action).items() if value is not None} for action in actions]
    return [one["kind"] if len(one) == 1 else {one.pop("kind"): one} for one in plain]


def happen(core, at, event):
    name, given = (event, {}) if isinstance(event, str) else next(iter(event.items()))
    given = dict(given)
    if "answer" in given:
        given["answer"] = Answer(**given["answer"])
    return getattr(core, name)(at, **given)


@pytest.mark.parametrize("case", CASES, ids=[case["case"] for case in CASES])
def test_vectors(case):
    settings = case["settings"]
    core = Core(settings["ttl_ms"], settings.get("takeover", False), settings.get("watches", False), lambda: settings.get("random", 1))
    for step in case["steps"]:
        actions = happen(core, step["at"], step["event"])
        assert told(actions) == step.get("actions", []), step
        assert core.state(step["at"]) == step["state"], step
        for field in "trusted_until", "deadline":
            if field in step:
                value = getattr(core, field)
                assert (value() if callable(value) else value) == step[field], (field, step)


def test_a_wrong_core_fails(monkeypatch):
    """Four rules are broken in turn, and the vectors find each: trust counted from the answer, for instance."""
    broken = {
        "_believe": lambda self, now, sent, trust_ms: right["_believe"](self, now, now, trust_ms),  # trust from the answer
        "_ended": lambda self, now: right["_ended"](self, now)[1:],  # no cancel
        "_lose_connection": lambda self, now: (right["_lose_connection"](self, now), setattr(self, "session", None)),  # a lost session
        "connected": lambda self, now: (setattr(self, "takeover", True), setattr(self, "_had_session", False), right["connected"](self, now))[2],
    }
    right = {name: getattr(Core, name) for name in broken}
    for name, wrong in broken.items():
        with monkeypatch.context() as patch:
            patch.setattr(Core, name, wrong)
            failed = sum(fails(case) for case in CASES)
        assert failed > 0, name
    assert not any(fails(case) for case in CASES)


def fails(case):
    try:
        test_vectors(case)
    except (AssertionError, RuntimeError):
        return True
    return False
