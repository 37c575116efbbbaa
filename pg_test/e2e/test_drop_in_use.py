"""The extension is dropped while it is in use: by open sessions, waiting calls, fenced transactions, the worker, and a
crowd that goes on."""

import os
import subprocess
import threading
import time
from pathlib import Path

import psycopg
import pytest
from client import Session, call, rows, stat
from conftest import Server, once, wait_until
from faults import LOGS_SQLSTATES, Log
from psycopg.types.json import Jsonb

# The errors that a caller may get meanwhile: the schema, function, table or extension does not exist.
GONE = {"3F000", "42883", "42P01", "42704"}


@pytest.fixture
def used():
    server = Server("e2e-used", LOGS_SQLSTATES, "deadlock_timeout = '20ms'")
    server.query("CREATE EXTENSION eskit_lease")
    yield server
    server.stop()


def test_with_a_waiting_call(used, background):
    log = Log(used)
    with used.connect() as conn, used.connect() as dropping:
        session = Session(conn, "waiting", ttl="60 s")
        waiting = background(call, conn, "session_wait", session.id, session.revision, "2 s")
        wait_until(lambda: stat(dropping, "calls_waiting") == 1)
        dropping.execute("DROP EXTENSION eskit_lease")
        # The waiting call's session ends with the extension, sooner or later.
        error = waiting.exception()
        assert error is None or error.sqlstate in GONE, error
        dropping.execute("CREATE EXTENSION eskit_lease")
        assert stat(dropping, "calls_waiting") == 0
        assert session.heartbeat().reason == "unknown_session"
        assert Session(conn, "new").take("r")
    log.is_clean()


def test_with_a_fenced_transaction(used):
    """DROP EXTENSION waits for the fenced transaction, as every DROP does. One that times out has changed nothing."""
    with used.connect() as conn, used.connect() as dropping:
        conn.execute("CREATE TABLE work (i int)")
        session = Session(conn, "fenced", ttl="60 s")
        fence = session.take("r")
        with conn.transaction():
            session.check("r")
            dropping.execute("SET lock_timeout = '50 ms'")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                dropping.execute("DROP EXTENSION eskit_lease")
            conn.execute("INSERT INTO work VALUES (1)")
            session.check("r")
        assert session.renew("r").held
        dropping.execute("SET lock_timeout = 0")
        dropping.execute("DROP EXTENSION eskit_lease")
        dropping.execute("CREATE EXTENSION eskit_lease")
        assert session.heartbeat().reason == "unknown_session"
        assert Session(conn, "new").take("r") > fence


def test_its_schema_alone_is_not_dropped(used):
    with used.connect() as conn:
        session = Session(conn, "there", ttl="60 s")
        with pytest.raises(psycopg.errors.DependentObjectsStillExist) as refused:
            conn.execute("DROP SCHEMA eskit_lease CASCADE")
        assert "extension eskit_lease" in refused.value.diag.message_hint
        assert session.heartbeat().alive


class User(threading.Thread):
    """Uses the extension, whether it exists or not."""

    def __init__(self, server, name):
        super().__init__(name=name)
        self.server, self.stopping, self.failure = server, threading.Event(), None
        self.worked, self.told, self.fences = 0, set(), []

    def run(self):
        with self.server.connect() as conn:
            session = None
            while not self.stopping.is_set():
                try:
                    session = session or Session(conn, self.name, ttl="2 s")
                    answer = session.acquire("r", queue=True)
                    if answer.granted:
                        self.fences.append(answer.fence)
                        with conn.transaction():
                            session.check("r")
                        session.release("r")
                        self.worked += 1
                    elif answer.reason in ("expired", "unknown_session"):
                        session = None
                    else:
                        session.wait("10 ms")
                except psycopg.Error as error:
                    if error.sqlstate not in GONE | {"LF001", "40P01", "40001", "55P03"}:
                        self.failure = error
                        raise
                    self.told.add(error.sqlstate)
                    session = None


def test_under_a_crowd(used):
    """The extension is dropped and created while clients make calls. Calls lock tables in an order of their own, so a
    DROP may fail by a deadlock; then it is tried again."""
    log, deadlocks, before = Log(used), 0, 0
    users = [User(used, f"user {i}") for i in range(4)]
    for user in users:
        user.start()
    try:
        with used.connect() as conn:
            for _ in range(15):
                worked = [user.worked for user in users]
                wait_until(lambda: all(user.failure or user.worked > count for user, count in zip(users, worked, strict=True)))  # noqa: B023
                limit = time.monotonic() + 30
                while True:
                    try:
                        conn.execute("DROP EXTENSION eskit_lease")
                        break
                    except psycopg.errors.DeadlockDetected:
                        deadlocks += 1
                        assert time.monotonic() < limit
                before = max(fence for user in users for fence in user.fences)
                conn.execute("CREATE EXTENSION eskit_lease")
                assert Session(conn, "new").take("new") > before
    finally:
        for user in users:
            user.stopping.set()
        for user in users:
            user.join()
    assert not [user.failure for user in users if user.failure]
    print(f"{deadlocks} deadlocks; users were told {set().union(*(user.told for user in users))}")
    wait_until(lambda: used.workers("launcher"))
    log.is_clean()


@once
def test_sequences_that_are_set_back_are_raised_again(used):
    """pg_restore sets sequences back in this way, to the numbers of its dump."""
    with used.connect() as conn:
        session = Session(conn, "there", ttl="60 s")
        call(conn, "queue_create", "q")

        def numbers():
            fence = session.take("r")
            assert session.release("r")
            begun = call(conn, "execution_begin", "k", session.id)
            assert call(conn, "execution_fail", "k", begun.fence, "error", True)
            item = call(conn, "item_add", "q", Jsonb(1))
            ((claimed, *_),) = [(row.fence,) for row in rows(conn, "item_claim", "q", session.id)]
            return fence, begun.fence, item, claimed

        before = numbers()
        conn.execute("SELECT setval('eskit_lease.fence_seq', 64000), setval('eskit_lease._item_seq', 64000)")
        after = numbers()
        assert all(number < next for number, next in zip(before, after, strict=True))
        assert after[1] > max(before[0], before[1], before[3])


@once
@pytest.mark.parametrize("how", [("--clean",), ("--clean", "-1")])
def test_restored_over_a_crowd(used, tmp_path, how):
    """Clients get only SQLSTATEs that they know. Fences rise, although the restore sets their sequence back while
    clients draw from it."""
    tool, log = Path(os.environ["PG_BIN"]), Log(used)
    with used.connect() as conn:
        call(conn, "group_create", "g", 4)
        call(conn, "queue_create", "q")
        Session(conn, "before").take("r")
        subprocess.run([tool / "pg_dump", "-Fc", "-d", used.dsn(), "-f", tmp_path / "dump"], check=True)
    users = [User(used, f"user {i}") for i in range(4)]
    for user in users:
        user.start()
    try:
        for _ in range(5):
            worked = [user.worked for user in users]
            wait_until(lambda: all(user.failure or user.worked > count for user, count in zip(users, worked, strict=True)))  # noqa: B023
            before = max(fence for user in users for fence in user.fences)
            # pg_restore may fail by a deadlock, or because of what it then finds in its way.
            subprocess.run([tool / "pg_restore", *how, "-d", used.dsn(), tmp_path / "dump"], capture_output=True)
            with used.connect() as conn:
                assert Session(conn, "new").take("new") > before
    finally:
        for user in users:
            user.stopping.set()
        for user in users:
            user.join()
    assert not [user.failure for user in users if user.failure]
    print(f"users were told {set().union(*(user.told for user in users))}")
    log.is_clean()


def test_its_sessions_make_room():
    """The slots of its sessions in shared memory are free again, although their rows no longer exist."""
    server = Server("e2e-room", "eskit_lease.max_sessions = 16")
    try:
        with server.connect() as conn:
            conn.execute("CREATE EXTENSION eskit_lease")
            for i in range(16):
                Session(conn, f"before {i}", ttl="2 s")
            with conn.transaction():  # so that no client ever sees the database without the extension
                conn.execute("DROP EXTENSION eskit_lease")
                conn.execute("CREATE EXTENSION eskit_lease")
            after = []

            def opened():
                try:
                    after.append(Session(conn, f"after {len(after)}", ttl="60 s"))
                except psycopg.errors.ConfigurationLimitExceeded:
                    return False
                return len(after) == 16

            wait_until(opened, timeout=30)
    finally:
        server.stop()
