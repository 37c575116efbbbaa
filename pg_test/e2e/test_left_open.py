"""Transactions are left open over holders, idle or prepared, with a snapshot as old as the run, while settings change all the time: they keep what is
theirs to keep and nothing else, and when they end whoever waits is served."""

import itertools
import time

import pytest
from client import Session, call, stat
from conftest import Server, wait_until
from faults import LOGS_SQLSTATES, Competition, Log, nothing_left

SETTINGS = [
    {"max_wait": "50ms", "max_waiting": 1}, {"row_retention": 0, "max_workers": 1}, {"worker": "off"}, {"worker": "on", "max_waiting": 100},
    {"max_wait": "10s", "min_ttl": "500ms", "max_ttl": "2h"}, {"row_retention": 3600, "max_workers": 4, "default_ttl": "3s"},
]  # fmt: skip


@pytest.fixture(scope="module")
def patient():
    server = Server("e2e-left-open", LOGS_SQLSTATES)
    server.query("CREATE EXTENSION eskit_lease")
    yield server
    server.stop()


def test_left_open(patient):
    log = Log(patient)
    old, idle, conn, other = (patient.connect() for _ in range(4))
    old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    old.execute("SELECT count(*) FROM eskit_lease._leases")
    names = ("fenced", "being released", "being granted")
    fenced, releasing, granted = (Session(conn, name, ttl="2 s") for name in names)
    waiter = Session(other, "waiter", ttl="600 s")
    fenced.take("fenced")
    releasing.take("being released")
    # One that has checked a fence and does nothing more; its session is dead by and by.
    idle.execute("BEGIN")
    call(idle, "fence_check", "fenced", fenced.fences["fenced"])
    # Two that are prepared: a release, and a grant.
    with patient.connect() as preparing:
        for gid, function, *args in (
            ("release", "lease_release", "being released", releasing.fences["being released"]),
            ("grant", "lease_acquire", "being granted", granted.id),
        ):
            preparing.execute("BEGIN")
            call(preparing, function, *args)
            preparing.execute(f"PREPARE TRANSACTION '{gid}'")
    for name in names:
        waiter.queue(name)
    with Competition(patient, ttl="1 s") as competition:
        until = time.monotonic() + 4
        for settings in itertools.cycle(SETTINGS):
            patient.set(**{f"eskit_lease__{name}": value for name, value in settings.items()})
            competition.go_on(1)
            if time.monotonic() > until:
                break
        patient.set(**{f"eskit_lease__{name}": None for settings in SETTINGS for name in settings})
        competition.go_on(20)
        wait_until(lambda: fenced.expired(other) and releasing.expired(other) and granted.expired(other))
        passes = stat(other, "sweeps")
        wait_until(lambda: stat(other, "sweeps") >= passes + 2)
        assert waiter.heartbeat().alive
        assert not [name for name in names if waiter.holds(name)], "each is kept by a transaction that is open"
        blockers = {row[0] for row in other.execute("SELECT coalesce(prepared, 'idle') FROM eskit_lease.blockers").fetchall()}
        assert {"idle", "release", "grant"} <= blockers
        idle.execute("COMMIT")
        wait_until(lambda: waiter.holds("fenced"))
        other.execute("COMMIT PREPARED 'release'")
        other.execute("ROLLBACK PREPARED 'grant'")
        wait_until(lambda: waiter.holds("being released") and waiter.holds("being granted"))
        competition.go_on()
        # To the old snapshot nothing has changed, and a session that it sees is none the livelier for it.
        assert old.execute("SELECT count(*) FROM eskit_lease._leases").fetchone() == (0,)
        assert not call(old, "session_heartbeat", fenced.id).alive
        old.execute("COMMIT")
    for each in (old, idle, conn, other):
        each.close()
    competition.prove(patient)
    nothing_left(patient)
    log.is_clean()
