"""A group of real processes that come and go, some by SIGKILL, SIGSTOP and drain: each payment is applied once and in order.

`make soak` runs the same for longer, by a schedule of another seed."""

import os

import pytest
from conftest import ROOT
from scenario import Scenario

SEED = os.environ.get("SOAK_SEED", "4")
SECONDS = float(os.environ.get("SOAK_SECONDS", "10")) / 2


@pytest.mark.flaky(reruns=0)  # what its history proves once is proved
@pytest.mark.parametrize("way", ["direct", "pgbouncer"])
def test_members_come_and_go(server, pgbouncer, db, way):
    history = ROOT / f"target/log/scenario-{way}-{SEED}.jsonl"
    Scenario(server, db, pgbouncer if way == "pgbouncer" else None, f"{way} {SEED}", SECONDS, history).run()
