"""Background processes are stopped, killed and refused: no session is granted what another holds, and waiters are
served."""

import contextlib
import os
import signal
import time

import pytest
from client import Session, stat
from conftest import Server, once, wait_until
from faults import LOGS_SQLSTATES, Competition, Log, nothing_left

pytestmark = once


@pytest.fixture
def worked():
    server = Server("e2e-worked", "fsync = on", LOGS_SQLSTATES)
    server.query("CREATE EXTENSION eskit_lease")
    yield server
    server.stop()


@contextlib.contextmanager
def stopped(*pids):
    """Stops processes during a `with`, as a debugger or an overcommitted machine would."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def test_held_up(worked):
    """A launcher that waits for a lock does not mistake that for a pause of the machine, even if no other process makes
    a call meanwhile."""
    with worked.connect() as conn, worked.connect() as locking:
        Session(conn, "long", ttl="1 min")
        wait_until(lambda: not worked.workers())
        Session(conn, "over while it is locked", ttl="2 s")
        time.sleep(1.5)  # the worker that served it has ended
        with locking.transaction():
            locking.execute("LOCK TABLE pg_database IN ACCESS EXCLUSIVE MODE")
            time.sleep(4)
        wait_until(lambda: conn.execute("SELECT count(*) FROM eskit_lease._sessions").fetchone() == (1,))
    assert not worked.logged("the machine was paused")


@pytest.mark.parametrize("kind", ["launcher", "worker"])
def test_stopped(worked, kind):
    """A stopped process is not in the way: sessions that ask are served. Then it goes on."""
    with worked.connect() as conn, worked.connect() as other, Competition(worked) as competition:
        (pid, *_) = wait_until(lambda: worked.workers(kind))
        with stopped(pid):
            leader, follower = Session(conn, "leader", ttl="1 s"), Session(other, "follower", ttl="6 s")
            leader.take("r")
            follower.queue("r")
            assert follower.wait_for("r") > leader.deadline - 0.010
            competition.go_on(20)
        last, waiter = Session(conn, "last", ttl="1 s"), Session(other, "waiter", ttl="60 s")
        last.take("s")
        waiter.queue("s")
        wait_until(lambda: waiter.holds("s"))  # the worker grants it
    competition.prove(worked)
    nothing_left(worked)


@pytest.mark.parametrize("kind", ["launcher", "worker"])
def test_killed(worked, kind):
    """PostgreSQL restarts all of itself when a process is killed with SIGKILL."""
    log = Log(worked)
    with Competition(worked) as competition:
        for _ in range(2):
            (pid, *_) = wait_until(lambda: worked.workers(kind))
            highest = competition.highest_fence()
            with contextlib.suppress(ProcessLookupError):  # an idle worker may have ended
                os.kill(pid, signal.SIGKILL)
            competition.go_on(5)
            wait_until(lambda: competition.highest_fence() > highest)
    competition.prove(worked)
    wait_until(lambda: worked.workers("launcher"))
    nothing_left(worked)
    log.is_clean("was terminated by signal 9")


def test_terminated_again_and_again(worked):
    log = Log(worked)
    with Competition(worked) as competition, worked.connect() as conn:
        terminate = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE backend_type LIKE 'eskit_lease%'"
        until = time.monotonic() + 3
        ended = 0
        while time.monotonic() < until:
            ended += conn.execute(terminate).fetchone()[0]
            time.sleep(0.01)
        competition.go_on(20)
    print(f"{ended} were terminated")
    competition.prove(worked)
    wait_until(lambda: worked.workers("launcher"))
    nothing_left(worked)
    log.is_clean()


def test_without_any_slot_for_a_worker():
    """Not even the launcher gets a slot: PostgreSQL logs that, and every answer is still right."""
    server = Server("e2e-workerless", "max_worker_processes = 0", "max_parallel_workers = 0", LOGS_SQLSTATES)
    try:
        server.query("CREATE EXTENSION eskit_lease")
        assert server.logged("too many background workers")
        with Competition(server, ttl="1 s") as competition, server.connect() as conn:
            competition.go_on(20)
            leader, follower = Session(conn, "leader", ttl="1 s"), Session(conn, "follower", ttl="6 s")
            leader.take("r")
            follower.queue("r")
            assert follower.wait_for("r") > leader.deadline - 0.010
            assert stat(conn, "sweeps") == 0
        competition.prove(server)
        assert not server.workers("launcher")
        nothing_left(server)
    finally:
        server.stop()


def test_null(worked):
    """A null where the schema says NOT NULL does not end a worker: it warns, and goes on."""
    worked.query("ALTER TABLE eskit_lease._waiters ALTER COLUMN session DROP NOT NULL")
    worked.query("INSERT INTO eskit_lease._waiters (resource, session, queued_at) VALUES ('r', NULL, now())")
    log = Log(worked)
    worked.restart()  # after it a worker rescans everything
    wait_until(lambda: any("WARNING" in line and 'column "session"' in line and "is null" in line for line in log.lines()))
    with worked.connect() as conn, worked.connect() as other:
        last, waiter = Session(conn, "last", ttl="1 s"), Session(other, "waiter", ttl="60 s")
        last.take("s")
        waiter.queue("s")
        wait_until(lambda: waiter.holds("s"))
    assert not [line for line in log.lines() if "ERROR" in line]
