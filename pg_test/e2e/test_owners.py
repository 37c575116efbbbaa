"""Sessions shared by several connections, take-overs, grace and permits: at no time do two processes use one fence, or
more sessions hold than are allowed.

`make soak` runs the same for longer, by a schedule of another seed."""

import os

import pytest
from owners import Inside, Stress, out_of_order, too_many, written_by_two

SEED = os.environ.get("SOAK_SEED", "6")
SECONDS = float(os.environ.get("SOAK_SECONDS", "8"))


@pytest.mark.flaky(reruns=0)  # what its history proves once is proved
def test_no_two_processes_use_one_fence(server, db):
    assert Stress(server, db, SEED, SECONDS).run()


def test_the_oracle_sees():
    """Each check finds its fault in the smallest history that has it."""
    assert list(written_by_two([("one", 7, 1), ("one", 7, 1), ("one", 7, 2)]))
    assert not list(written_by_two([("one", 7, 1), ("one", 8, 2), ("other", 7, 2)]))
    assert list(out_of_order([("one", 8, 1), ("one", 7, 1)]))
    assert not list(out_of_order([("permits", 8, 1), ("permits", 7, 1), ("one", 7, 1), ("one", 7, 1), ("one", 8, 1)]))

    def at_once(*holders):
        return list(too_many([Inside(resource, fence, process, at / 10, 5) for at, (resource, fence, process) in enumerate(holders)]))

    assert at_once(("one", 7, 1), ("one", 8, 2)) and at_once(("one", 7, 1), ("one", 7, 2))
    assert at_once(("permits", 7, 1), ("permits", 8, 2), ("permits", 9, 3)) and at_once(("permits", 7, 1), ("permits", 8, 1))
    assert not at_once(("one", 7, 1), ("one", 7, 1), ("permits", 8, 1), ("permits", 9, 2))
