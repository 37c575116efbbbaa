"""Random histories of watched tables: each consumer is woken once it can read rows, and seldom in vain.

`make soak` runs the same for longer, by a schedule of another seed."""

import os
from types import SimpleNamespace

import pytest
from news import OPEN, TRIED, Stress, too_often

SEED = os.environ.get("SOAK_SEED", "9")
SECONDS = float(os.environ.get("SOAK_SECONDS", "8")) / 2


@pytest.mark.flaky(reruns=0)  # what its history proves once is proved
@pytest.mark.parametrize("tells_all", [True, False])
def test_no_wake_up_is_lost(server, db, tells_all):
    stress = Stress(server, db, SEED, SECONDS, tells_all)
    stress.run()
    assert not stress.faults, "\n".join(stress.faults[:20])
    assert stress.counts[TRIED] >= 10


def test_the_oracle_sees(server, db):
    """Each check finds its fault."""
    stress = Stress(server, db, SEED, 20, watching=False, limit=1)
    stress.run()
    assert any("not woken" in fault for fault in stress.faults)

    def faults(woken, *told):
        return list(too_often([SimpleNamespace(name="idle", is_last=True, watches=1, woken=woken)], told))

    assert faults(OPEN + 2, "much") and not faults(OPEN + 1) and not faults(OPEN + 2, "never")
