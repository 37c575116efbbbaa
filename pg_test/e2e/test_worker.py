"""The worker is prompt at the deadline, comes back after it was ended, is never in the way, and is not needed for right
answers."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack

import psycopg
import pytest
from client import Session, best_of, call, rows, stat
from conftest import Server, wait_until
from psycopg.types.json import Jsonb

ATTACHED = """
import sys, psycopg
conn = psycopg.connect(sys.argv[1], autocommit=True)
session = conn.execute("SELECT session FROM eskit_lease.session_open('child', '60 s', true)").fetchone()[0]
for resource in sys.argv[2:]:
    assert conn.execute("SELECT granted FROM eskit_lease.lease_acquire(%s, %s)", (resource, session)).fetchone()[0]
print(session, flush=True)
sys.stdin.read()
"""

ACQUIRE_RANGE = """
SELECT eskit_lease.lease_acquire_many(array(SELECT 'many ' || lpad(i::text, 6, '0') FROM generate_series(%s::int, %s::int) AS i), %s)
"""
LEASES_OF = "SELECT FROM eskit_lease._leases WHERE session = %s"


def test_expired_lease_is_handed_over_at_the_deadline(connect, background):
    holder, waiter = connect(), connect()

    def from_deadline_to_told():
        leader = Session(holder, "leader", ttl="1 s")
        leader.take("sub:orders")
        follower = Session(waiter, "follower").queue("sub:orders")
        told = background(follower.wait_for, "sub:orders")
        leader.heartbeat()  # the last heartbeat
        late = told.result() - leader.deadline
        assert late > -0.010, "granted before the holder's deadline"
        assert follower.acquire("sub:orders").reason == "already_held"
        assert leader.heartbeat().reason == "expired"
        follower.close()
        return late

    best_of(10, 50, from_deadline_to_told)


def test_lease_of_a_killed_client_is_handed_over(server, db, connect, background):
    waiter = connect()

    def from_kill_to_told():
        child = subprocess.Popen(
            [sys.executable, "-c", ATTACHED, server.dsn(db), "sub:orders"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        with child:
            child.stdout.readline()
            follower = Session(waiter, "follower").queue("sub:orders")
            told = background(follower.wait_for, "sub:orders")
            wait_until(lambda: server.query("SELECT value FROM eskit_lease.stats() WHERE name = 'calls_waiting'", dbname=db) == [(1,)])
            killed_at = time.monotonic()
            child.kill()
        late = told.result() - killed_at
        follower.close()
        return late

    best_of(10, 50, from_kill_to_told)


def test_attached_session_outlives_its_connection_for_its_grace(connect):
    attached, other = connect(), connect()
    session = Session(attached, "graceful", attach=True, grace="700 ms")
    session.take("r")
    rival = Session(other, "rival")
    closing_at = time.monotonic()
    attached.close()
    assert rival.acquire("r").reason == "held"
    wait_until(lambda: rival.acquire("r").granted)
    assert time.monotonic() - closing_at > 0.7


def test_an_attached_session_that_is_used_on_other_connections_only_is_told_once(connect):
    """This is the case behind a pooler, whose connection says nothing of the client."""
    direct, other = connect(), connect()
    told = []
    for conn in (direct, other):
        conn.add_notice_handler(lambda notice: told.append((notice.severity, notice.message_primary, notice.message_detail, notice.message_hint)))
    stray, used, free = (Session(direct, name, ttl="3 s", attach=name != "free") for name in ("stray", "used", "free"))
    call(direct, "session_heartbeat", used.id)

    def beat(*sessions):
        for session in sessions:
            assert call(other, "session_heartbeat", session.id).alive

    beat(stray)
    assert not told, "it may be used there yet"
    wait_until(lambda: beat(stray, used, free) or told)
    (notice,) = told
    assert notice[:2] == ("NOTICE", "session is attached to a connection that it is not used on")
    assert "ends with the connection" in notice[2] and "without attach" in notice[3]
    late = time.monotonic() + 3
    wait_until(lambda: beat(stray, used, free) or time.monotonic() > late)
    assert len(told) == 1, "the one session, once"
    pids = "SELECT DISTINCT attached_pid FROM eskit_lease.sessions WHERE consumer <> 'free'"
    assert other.execute(pids).fetchall() == [(direct.info.backend_pid,)]


def test_detached_session_outlives_its_connection(connect):
    attached, other = connect(), connect()
    session = Session(attached, "detached", attach=True)
    session.take("r")
    assert call(attached, "session_detach", session.id)
    assert not call(attached, "session_detach", session.id)
    pid = attached.info.backend_pid
    attached.close()
    wait_until(lambda: not other.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", (pid,)).fetchone())
    assert call(other, "session_heartbeat", session.id).alive
    assert Session(other, "rival").acquire("r").reason == "held"


def test_without_worker_an_acquire_takes_over_at_the_deadline(connect, no_worker):
    conn = connect()

    def from_deadline_to_taken():
        leader, rival = Session(conn, "leader", ttl="1 s"), Session(conn, "rival")
        leader.take("r")
        while not (answer := rival.acquire("r")).granted:
            assert answer.reason == "held"
            assert time.monotonic() < leader.deadline + 10
        late = time.monotonic() - leader.deadline
        assert late > -0.010
        assert answer.fence > leader.fences["r"]
        rival.close()
        return late

    best_of(10, 50, from_deadline_to_taken)


def test_without_worker_a_waiter_is_served_by_its_own_wait(connect, no_worker):
    leader, follower = Session(connect(), "leader", ttl="1 s"), Session(connect(), "follower", ttl="6 s")
    leader.take("r")
    follower.queue("r")
    told_at = follower.wait_for("r")
    assert told_at > leader.deadline - 0.010


MANY = "SELECT count(s.session) FROM generate_series(1, 300) AS n, eskit_lease.session_open('many ' || n, '1 h') AS s"


def test_the_few_that_are_due_are_found_among_many(connect, no_worker, background):
    """A search for due sessions skips many sessions at a time, none of them due, while others are opened among them."""
    opener, looker = connect(), connect()
    for queue in ("q", "empty"):
        call(opener, "queue_create", queue)
    call(opener, "session_sweep")  # from now on no sweep looks for rows from before the server's start
    watching, opened = Session(looker, "watching", ttl="1 h"), threading.Event()

    def look():
        while not opened.is_set():
            assert not rows(looker, "item_claim", "empty", watching.id)

    looks = background(look)
    few = []
    for _ in range(6):
        opener.execute(MANY)
        for _ in range(3):
            few.append(Session(opener, "one of few", ttl="2 s"))
            call(opener, "item_add", "q", Jsonb("work"))
            assert rows(opener, "item_claim", "q", few[-1].id)
    opened.set()
    looks.result()
    expired = "SELECT count(*) FROM eskit_lease.sessions WHERE state = 'expired'"  # the view checks each session by itself
    wait_until(lambda: opener.execute(expired).fetchone() == (len(few),))
    assert len(rows(looker, "item_claim", "q", watching.id, 100)) == len(few)
    assert call(opener, "session_sweep").ended == len(few)


@pytest.mark.parametrize("how", ["terminate", "kill -TERM"])
@pytest.mark.parametrize("kind", ["launcher", "worker"])
def test_comes_back_when_ended(server, db, connect, kind, how):
    leader, follower = Session(connect(), "leader", ttl="1 s"), Session(connect(), "follower")
    leader.take("r")
    follower.queue("r")
    (pid, *_) = wait_until(lambda: server.workers(kind))
    if how == "terminate":
        server.query("SELECT pg_terminate_backend(%s)", pid)
    else:
        with contextlib.suppress(ProcessLookupError):  # an idle worker may have ended
            os.kill(pid, signal.SIGTERM)
    wait_until(lambda: pid not in server.workers(kind))
    follower.wait_for("r")
    wait_until(lambda: server.workers("launcher"))


def test_no_worker_lingers_and_none_holds_a_snapshot(server, db, connect):
    conn = connect()
    session = Session(conn, "idle")  # it lives for long, so nothing else is due
    session.take("r")
    session.release("r")
    sometimes = wait_until(lambda: server.workers(dbname=db))
    busy_since = time.monotonic()
    while server.workers(dbname=db):
        open_snapshots = server.query(
            "SELECT pid FROM pg_stat_activity WHERE backend_type LIKE 'eskit_lease%' AND clock_timestamp() - xact_start > interval '2 s'"
        )
        assert not open_snapshots
        assert time.monotonic() < busy_since + 10, f"worker {sometimes} lingers"
        time.sleep(0.01)
    names = server.query("SELECT backend_type, state, xact_start FROM pg_stat_activity WHERE backend_type LIKE 'eskit_lease%'")
    assert [name for name, *_ in names] == ["eskit_lease launcher"]
    assert names[0][2] is None


@pytest.fixture
def crowded(background):
    """A server with one slot for workers besides those of the launchers, which a parallel query takes until it is
    cancelled."""
    server = Server("e2e-crowded", "max_worker_processes = 3", "max_parallel_workers_per_gather = 1", "eskit_lease.max_workers = 1")
    server.query("CREATE EXTENSION eskit_lease")
    server.query("CREATE TABLE busy AS SELECT generate_series(1, 100000) AS i")
    server.query("ALTER TABLE busy SET (parallel_workers = 1)")
    # Each database is visited once after the start; this one, the last, is visited when it is first used.
    server.query("SELECT eskit_lease.session_close(session) FROM eskit_lease.session_open('first')")
    rescans = "SELECT value FROM eskit_lease.stats() WHERE name = 'rescans'"
    wait_until(lambda: server.query(rescans) == [(1,)] and not server.workers())
    conn = server.connect()
    conn.execute("SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0")
    query = background(conn.execute, "SELECT count(*) FROM busy WHERE pg_sleep(i % 2 + 1) IS NULL")
    wait_until(lambda: server.query("SELECT 1 FROM pg_stat_activity WHERE backend_type = 'parallel worker'"))
    server.free_slot = conn.cancel
    yield server
    conn.cancel()
    assert isinstance(query.exception(), psycopg.errors.QueryCanceled)
    server.stop()


def test_a_waiting_call_does_not_wait_for_who_drops_the_extension(crowded, background):
    """A waiting call does the work of the worker, which has no process, only after the DROP has been cancelled."""
    with ExitStack() as stack:
        conn, other, third, dropping = (stack.enter_context(crowded.connect()) for _ in range(4))
        leader, follower, waiter, busy = (
            Session(c, str(n), ttl=ttl) for n, (c, ttl) in enumerate(zip((conn, conn, other, third), ("3 s", "1 h", "1 h", "1 h"), strict=True))
        )
        leader.take("r")
        follower.queue("r")
        sweeps = stat(conn, "sweeps")
        other.execute("SET statement_timeout = '10 s'")
        with third.transaction():
            busy.take("other")
            drop = background(dropping.execute, "DROP EXTENSION eskit_lease CASCADE")
            wait_until(lambda: crowded.query("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'DROP EXTENSION%'"))
            # By then the leader is dead, and the launcher has asked waiting calls for help.
            until = time.monotonic() + 6
            while time.monotonic() < until:
                assert waiter.wait("1 s").alive
            dropping.cancel()
            assert isinstance(drop.exception(), psycopg.errors.QueryCanceled)
        wait_until(lambda: waiter.wait("100 ms").alive and follower.holds("r"))
        assert stat(conn, "sweeps") > sweeps


def test_lazily_works_without_a_worker_slot_and_recovers(crowded):
    no_slot = "no free background worker slot"
    with crowded.connect() as conn, crowded.connect() as other:
        leader, follower = Session(conn, "leader", ttl="1 s"), Session(other, "follower", ttl="6 s")
        leader.take("r")
        follower.queue("r")
        assert follower.wait_for("r") > leader.deadline - 0.010
        assert crowded.logged(no_slot)
        again = Session(conn, "again", ttl="1 s")
        again.take("s")
        wait_until(lambda: follower.acquire("s").granted)
        assert time.monotonic() > again.deadline - 0.010
        assert not crowded.workers()
        assert len(crowded.logged(no_slot)) == 1, "one line, however often it tries"
        crowded.free_slot()
        last, waiter = Session(conn, "last", ttl="1 s"), Session(other, "waiter", ttl="60 s")
        last.take("t")
        waiter.queue("t")
        wait_until(lambda: waiter.holds("t"))  # the worker grants it: the waiter makes no call
        wait_until(lambda: crowded.query("SELECT count(*) FROM eskit_lease._sessions WHERE consumer IN ('leader', 'again')") == [(0,)])


def test_what_is_waited_for_far_apart_is_handed_over_by_one_sweep(no_worker, connect):
    """A sweep looks at a thousand leases, hands over what it has found, and goes on."""
    conn = connect()
    waiter, dead = Session(conn, "waiter", ttl="600 s"), Session(conn, "dead", ttl="5 s")
    conn.execute(ACQUIRE_RANGE, (0, 2_499, dead.id))
    wanted = [f"many {number:06}" for number in (0, 999, 1_000, 1_700, 2_499)]
    for name in wanted:
        waiter.queue(name)
    call(conn, "session_sweep", 1_000)  # rescans the database, as so many leases were changed at once
    wait_until(lambda: dead.expired(conn), timeout=20)
    assert call(conn, "session_sweep", 1_000).handed_over == len(wanted)
    assert [waiter.acquire(name).reason for name in wanted] == ["already_held"] * len(wanted)


def test_a_dead_session_with_more_leases_than_one_sweep_looks_at(no_worker, connect):
    """A sweep by hand remembers no earlier looks. It hands an awaited lease over instead of only freeing it, wherever
    the lease is."""
    conn = connect()
    waiter, dead = Session(conn, "waiter", ttl="600 s"), Session(conn, "dead", ttl="5 s")
    for first in range(0, 60_000, 10_000):  # each call is a heartbeat
        conn.execute(ACQUIRE_RANGE, (first, first + 9_999, dead.id))
    last = f"many {59_999:06}"
    waiter.queue(last)
    wait_until(lambda: dead.expired(conn), timeout=20)
    left = conn.execute(LEASES_OF, (dead.id,)).rowcount
    assert call(conn, "session_sweep", 1_000).more
    assert conn.execute(LEASES_OF, (dead.id,)).rowcount <= left - 1_000
    for _ in range(3):
        call(conn, "session_sweep", 100_000)
    assert not conn.execute(LEASES_OF, (dead.id,)).rowcount
    assert waiter.acquire(last).reason == "already_held"
