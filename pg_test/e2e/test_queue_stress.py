"""Queues of six kinds under workers that fail in all ways, with prepared transactions and a crash: each item is done
once, in order and not before its time.

`make soak` runs the same for longer, by a schedule of another seed."""

import os
from collections import Counter

import pytest
from conftest import Server
from queue_oracle import Oracle
from queue_workers import PARTITIONS, QUEUES, Session
from queues import EVENTS, SERVER, Event, Stress

SEED = os.environ.get("SOAK_SEED", "8")
SECONDS = float(os.environ.get("SOAK_SECONDS", "8"))


@pytest.mark.flaky(reruns=0)  # what its history proves once is proved
def test_each_item_is_done_once(request):
    server = Server("e2e-queue-stress", *SERVER)
    request.addfinalizer(server.stop)
    stress = Stress(server, SEED, SECONDS, crashes=max(1, int(SECONDS / 20)))
    journal = stress.run()
    assert not stress.faults, "\n".join(stress.faults[:20])
    keys = {event.key or str(event.item) for event in journal if event.what == "add"}
    with server.connect() as conn:
        of = "SELECT key, eskit_lease.partition_for(key, %s) FROM unnest(%s::text[]) AS key"
        partitions = dict(conn.execute(of, (PARTITIONS, list(keys))).fetchall())
    faults = Oracle(stress.sessions, stress.committed, partitions.get).judge(journal)
    print(Counter(event.what for event in journal), Counter(event.queue for event in journal if event.what == "done"))
    assert not faults, "\n".join(faults[:20])
    # The run had every kind of queue and event.
    assert {event.queue for event in journal if event.what == "done"} == set(QUEUES)
    assert {event.what for event in journal} == EVENTS


def judged(*events, ended_by=None):
    """Returns the faults that the oracle finds in a history of one queue, whose session lives until `ended_by`."""
    session = Session("s", 1_000, 0)
    if ended_by is not None:
        session.ending_from = session.ended_by = ended_by
    journal = [Event(place, place, *event, began=place, at=place + 0.5) for place, event in enumerate(events)]
    oracle = Oracle({"s": session, "t": session}, {event.token: event.at for event in journal}, lambda _: 0)
    return [fault for fault in oracle.judge(journal) if " is lost" not in fault]


def test_the_oracle_sees():
    """Each check finds its fault in the smallest history that has it."""
    add, other = ("add", "key", 1, "k", 10), ("add", "key", 2, "k", 20)
    claim, done = ("claim", "key", 1, "k", 10, 7, 1, "s"), ("done", "key", 1, None, None, 7)
    assert not judged(add, claim, done) and not judged(add, claim, ("unclaim", *done[1:]), claim, done)
    assert judged(claim) and judged(add, add)
    # Two living sessions have the item; the item is claimed again after its session ended; its attempt is counted
    # wrongly.
    again = ("claim", "key", 1, "k", 10, 8, 2, "t")
    assert judged(add, claim, again) and not judged(add, claim, again, ended_by=1)
    assert judged(add, claim, claim, ended_by=1)
    # Done twice, done under a former claim, and done by a session that has ended.
    assert judged(add, claim, done, done) and judged(add, claim, again, done, ended_by=1)
    assert judged(add, claim, done, ended_by=1)
    # Claimed out of order, two of a key at a time, and with another payload.
    second = ("claim", "key", 2, "k", 20, 8, 1, "t")
    assert judged(add, other, second) and judged(add, other, claim, second)
    assert not judged(add, other, claim, done, second)
    assert judged(add, ("claim", "key", 1, "k", 11, 7, 1, "s"))
    # Failed without a claim; dead too soon; requeued though not dead; claimed before its time.
    assert judged(("add", "none", 1, "k", 10, None, None, None), ("fail", "none", 1, None, None, 7))
    assert judged(add, claim, ("dead", *done[1:])) and judged(add, claim, ("requeue", "key", 1))
    due = Event(0, 0, "add", "none", 1, number=1, began=0, at=0.5, due=5)
    early = [due, Event(1, 1, "claim", "none", 1, number=1, fence=7, attempt=1, began=1, at=2)]
    assert any("is due" in fault for fault in Oracle({}, {}, None).judge(early))
    # Lost.
    assert any(" is lost" in fault for fault in Oracle({}, {}, None).judge(early[:1]))
