"""Transactions that concern holders are left open, idle or prepared, one with a snapshot as old as the run, while
settings change all the time. They block only their own leases, and when they end the waiters are served."""

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
    # A transaction that has checked a fence and does nothing more; its session dies after a while.
    idle.execute("BEGIN")
    call(idle, "fence_check", "fenced", fenced.fences["fenced"])
    # Two prepared transactions: a release, and a grant.
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
        # For the old snapshot nothing has changed, but a dead session that it still sees stays dead.
        assert old.execute("SELECT count(*) FROM eskit_lease._leases").fetchone() == (0,)
        assert not call(old, "session_heartbeat", fenced.id).alive
        old.execute("COMMIT")
    for each in (old, idle, conn, other):
        each.close()
    competition.prove(patient)
    nothing_left(patient)
    log.is_clean()


POLLS = {
    "lease": "lease_acquire('dead', '{waiter}', true)",
    "unqueued": "lease_acquire('dead lock', '{waiter}')",
    "permit": "lease_acquire('dead permit', '{waiter}', true)",
    "lock": "lock_acquire('dead lock', 'nobody', '1 min')",
    "assignment": "group_assignment('dead group', '{waiter}')",
}


def test_polls_for_what_is_blocked_are_no_news(connect):
    """The worker retries leases that a dead holder's open transaction blocks less and less often, however often waiters
    ask."""
    conn, idle = connect(), connect()
    dead, waiter = Session(conn, "dead", ttl="2 s"), Session(conn, "waiter", ttl="600 s")
    call(conn, "semaphore_create", "dead permit", 1)
    call(conn, "group_create", "dead group", 1)
    dead.join("dead group")
    wait_until(lambda: dead.assignment("dead group"))
    waiter.join("dead group")
    (owned,) = dead.assignment("dead group")
    fences = [("dead group", owned.fence), *((name, dead.take(name)) for name in ("dead", "dead permit", "dead lock"))]
    idle.execute("BEGIN")
    for fence in fences:
        call(idle, "fence_check", *fence)
    waiter.queue("dead")
    waiter.queue("dead permit")
    wait_until(lambda: dead.expired(conn))
    # Waits until the worker retries the leases: then the passes are no longer those for the death itself.
    passes, rescans = stat(conn, "sweeps"), stat(conn, "rescans")
    wait_until(lambda: stat(conn, "sweeps") >= passes + 6)
    for what, poll in POLLS.items():
        passes, began = stat(conn, "sweeps"), time.monotonic()
        poll = poll.format(waiter=waiter.id)
        conn.execute(f"DO $$ BEGIN FOR i IN 1..2000 LOOP PERFORM FROM eskit_lease.{poll}; COMMIT; END LOOP; END $$")
        entries, passes = stat(conn, "resources_dirty"), stat(conn, "sweeps") - passes
        print(f"{what}: {passes} passes in {time.monotonic() - began:.1f} s, {entries} entries")
        assert entries <= 8, what
        # Formerly, each poll caused a pass, except in the first milliseconds after a pass.
        assert passes <= 30 + 10 * (time.monotonic() - began), what
    assert stat(conn, "rescans") == rescans
    idle.execute("COMMIT")
    wait_until(lambda: waiter.holds("dead") and waiter.holds("dead permit"))
    wait_until(lambda: waiter.assignment("dead group"))
