"""The lock table is full: a call that needs a lock raises a clear error and changes nothing; heartbeats need no lock.
Once there is room, all calls work. (Sessions and databases: test_limits.py. Slots for workers: test_worker.py,
test_worker_faults.py.)"""

import time

import psycopg
import pytest
from client import Session, call, rows, stat
from conftest import Server, once, wait_until
from faults import LOGS_SQLSTATES, Log, nothing_left

pytestmark = once

MANY = 4_000


@pytest.fixture(scope="module")
def tight():
    """A server with room for some hundred locks."""
    server = Server(
        "e2e-tight", "max_connections = 20", "max_locks_per_transaction = 10", "max_prepared_transactions = 0", "max_wal_senders = 0",
        LOGS_SQLSTATES,
    )  # fmt: skip
    server.query("CREATE EXTENSION eskit_lease")
    yield server
    server.stop()


def acquire_all(conn, session):
    fences = {}
    for first in range(0, MANY, 100):
        names = [f"r {i}" for i in range(first, first + 100)]
        fences |= {row.resource: row.fence for row in rows(conn, "lease_acquire_many", names, session.id)}
    return list(fences.items())


def check(conn, leases):
    names, fences = (list(part) for part in zip(*leases, strict=True))
    conn.execute("SELECT eskit_lease.fence_check(r, f) FROM unnest(%s::text[], %s::bigint[]) AS l (r, f)", (names, fences))


def fill(conn, leases):
    """Fills the lock table almost completely until the transaction ends. Returns how many fences were checked for
    that."""
    conn.execute("BEGIN")
    taken, step = 0, 256
    while step:
        try:
            with conn.transaction():
                check(conn, leases[taken : taken + step])
            taken += step
        except psycopg.errors.OutOfMemory as full:
            assert full.sqlstate == "53200" and "max_locks_per_transaction" in full.diag.message_hint
            step //= 2
        assert taken < MANY, "there is more room than this test thinks"
    return taken


def test_lock_table(tight):
    log = Log(tight)
    with tight.connect() as conn, tight.connect() as other, tight.connect() as watcher:
        holder, rival = Session(other, "holder", ttl="60 s"), Session(other, "rival", ttl="60 s")
        leases = acquire_all(other, holder)
        dies, heir = Session(other, "dies", ttl="2 s"), Session(other, "heir", ttl="60 s")
        dies.take("left")
        heir.queue("left")
        print(f"{fill(conn, leases)} fences fill the table")
        # Heartbeats and waits take no lock.
        for session in (holder, rival, heir):
            assert session.heartbeat().alive
            assert session.wait("10 ms").alive
        refused = 0
        for i in range(20):
            try:
                rows(other, "lease_acquire_many", [f"new {i} {j}" for j in range(100)], rival.id)
            except psycopg.errors.OutOfMemory as full:
                refused += full.sqlstate == "53200" and "max_locks_per_transaction" in full.diag.message_hint
        assert refused
        wait_until(lambda: time.monotonic() > dies.deadline)
        conn.execute("ROLLBACK")
        # Each call acquired all of its names or none.
        new = dict(watcher.execute("SELECT split_part(resource, ' ', 2), count(*) FROM eskit_lease.leases WHERE resource LIKE 'new%' GROUP BY 1").fetchall())
        assert set(new.values()) <= {100} and len(new) == 20 - refused
        # The worker may have had no room itself, and tries again.
        wait_until(lambda: heir.holds("left"))
        assert all(row.granted for row in rows(other, "lease_acquire_many", [f"last {i}" for i in range(100)], rival.id))
        holder.fences = dict(leases)
        holder.check("r 1")
        assert stat(watcher, "calls_waiting") == 0
    nothing_left(tight)
    log.is_clean()


def test_more_names_in_one_call_than_there_is_room_for(tight):
    """Each new name needs a lock during a statement, and a call takes these locks in batches."""
    with tight.connect() as conn:
        session = Session(conn, "greedy", ttl="60 s")
        names = [f"greedy {i}" for i in range(5_000)]
        try:
            answers = rows(conn, "lease_acquire_many", names, session.id)
            assert all(answer.granted for answer in answers)
        except psycopg.errors.OutOfMemory as full:
            assert full.sqlstate == "53200" and "max_locks_per_transaction" in full.diag.message_hint
            assert conn.execute("SELECT count(*) FROM eskit_lease.leases WHERE resource LIKE 'greedy%'").fetchone() == (0,)
            print("refused")
        assert session.heartbeat().alive
        assert call(conn, "lease_acquire", "greedy too", session.id).granted
    nothing_left(tight)
