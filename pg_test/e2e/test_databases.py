"""Databases, and the extension, are created and dropped while sessions are alive."""

import time

import psycopg
import pytest
from client import Session, call, stat
from conftest import MAJOR, Server, wait_until


@pytest.fixture
def lively(server, db):
    """Gives a database with live sessions, a lease, a waiter and no client."""
    with server.connect(db) as conn:
        holder, waiter = Session(conn, "holder", ttl="60 s"), Session(conn, "waiter", ttl="60 s")
        holder.take("r")
        waiter.queue("r")
        soon = Session(conn, "soon over", ttl="1 s")  # so that the worker has something to do
        soon.take("s")
    wait_until(lambda: not server.query("SELECT 1 FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend'", db))
    return db, holder


def test_drop_database(server, lively):
    db, _ = lively
    server.query(f"DROP DATABASE {db}")
    # The launcher forgets the database; a new one of the same name starts empty.
    server.query(f"CREATE DATABASE {db}")
    server.query("CREATE EXTENSION eskit_lease", dbname=db)
    with server.connect(db) as conn:
        assert conn.execute("SELECT count(*) FROM eskit_lease.sessions").fetchone() == (0,)
        assert Session(conn, "new").take("r")
    assert server.workers("launcher")


def test_no_worker_is_started_while_a_database_is_locked(server, lively):
    """DROP DATABASE holds such a lock: a worker that waited for the lock would end with a FATAL when the database is
    gone."""
    db, _ = lively
    wait_until(lambda: not server.workers(dbname=db))
    starting = "SELECT pid FROM pg_locks WHERE locktype = 'object' AND classid = 'pg_database'::regclass AND NOT granted"
    with server.connect() as conn, server.connect() as watch:
        with conn.transaction(force_rollback=True):
            conn.execute(f"ALTER DATABASE {db} RENAME TO {db}_locked")
            seen = [watch.execute(starting).fetchall() for _ in range(150) if not time.sleep(0.02)]
            assert not any(seen), "'soon over' is due"
        names = "SELECT count(*) FROM eskit_lease._sessions WHERE consumer = 'soon over'"
        wait_until(lambda: server.query(names, dbname=db) == [(0,)])


def test_create_database_from_template(server, lively):
    db, holder = lively
    copy = f"{db}_copy"
    server.query(f"CREATE DATABASE {copy} TEMPLATE {db}")
    try:
        with server.connect(copy) as conn, server.connect(db) as original:
            assert conn.execute("SELECT count(*) FROM eskit_lease.leases WHERE state = 'held'").fetchone() == (0,)
            rival = Session(conn, "in the copy", ttl="60 s")
            assert rival.take("r") > holder.fences["r"]
            assert not call(conn, "session_heartbeat", holder.id).alive
            # The worker removes the rows of the original's sessions from the copy.
            names = "SELECT array_agg(consumer) FROM eskit_lease._sessions"
            wait_until(lambda: conn.execute(names).fetchone() == (["in the copy"],))
            assert conn.execute("SELECT count(*) FROM eskit_lease.waiters").fetchone() == (0,)
            # In the original nothing has changed.
            assert call(original, "session_heartbeat", holder.id).alive
            assert call(original, "lease_renew", "r", holder.fences["r"]).held
    finally:
        server.query(f"DROP DATABASE {copy} WITH (FORCE)")


def test_rename_database(server, lively):
    db, holder = lively
    server.query(f"ALTER DATABASE {db} RENAME TO {db}_renamed")
    try:
        with server.connect(f"{db}_renamed") as conn:
            assert call(conn, "session_heartbeat", holder.id).alive
            assert call(conn, "lease_release", "r", holder.fences["r"])
            waiter = "SELECT consumer FROM eskit_lease.leases WHERE resource = 'r' AND state = 'held'"
            wait_until(lambda: conn.execute(waiter).fetchone() == ("waiter",))
            wait_until(lambda: conn.execute("SELECT count(*) FROM eskit_lease._sessions WHERE consumer = 'soon over'").fetchone() == (0,))
    finally:
        server.query(f"DROP DATABASE {db}_renamed WITH (FORCE)")


@pytest.mark.skipif(int(MAJOR) < 19, reason="before 19 the worker of the bridge keeps such commands out")
def test_a_database_with_a_held_bridge(server, db):
    """It is renamed, copied and dropped: PostgreSQL ends the worker, and another takes the lock of the bridge again."""
    with server.connect(db) as conn:
        call(conn, "bridge_create", "r", 7)
        session = Session(conn, "holder", ttl="5 min")
        session.queue("r").wait_for("r")
    name, held = f"{db}_renamed", "SELECT held FROM eskit_lease.bridges"

    def is_held(dbname):
        wait_until(lambda: server.workers(dbname=dbname) and server.query(held, dbname=dbname) == [(True,)])
        return server.workers(dbname=dbname)

    first = is_held(db)
    server.query(f"ALTER DATABASE {db} RENAME TO {name}")
    try:
        second = is_held(name)
        assert second != first
        server.query(f"CREATE DATABASE {db} TEMPLATE {name}")
        assert is_held(name) != second
        with server.connect(name) as conn:
            assert call(conn, "session_heartbeat", session.id).alive
    finally:
        server.query(f"DROP DATABASE {name}")
    wait_until(lambda: not server.workers(dbname=name))


def test_a_refused_command_leaves_a_held_bridge_alone(background):
    """PostgreSQL 19 asks the worker to leave before it looks for clients, and refuses the command if there are any."""
    server = Server("e2e-refused")
    server.query("CREATE DATABASE app")
    server.query("CREATE EXTENSION eskit_lease", dbname="app")
    with server.connect("app") as conn, server.connect("app") as old:
        call(conn, "bridge_create", "r", 7)
        session = Session(conn, "holder", ttl="5 min")
        session.queue("r").wait_for("r")
        worker = server.workers(dbname="app")
        refused = [background(server.query, command) for command in ("DROP DATABASE app", "ALTER DATABASE app RENAME TO b", "CREATE DATABASE c TEMPLATE app")]
        while not all(command.done() for command in refused):
            call(conn, "fence_check", "r", session.fences["r"])
            assert old.execute("SELECT pg_try_advisory_lock(7)").fetchone() == (False,)
            time.sleep(0.02)
        for command in refused:
            with pytest.raises(psycopg.errors.ObjectInUse):
                command.result()
        assert server.workers(dbname="app") == worker and session.acquire("r").reason == "already_held"
        with server.connect() as other:  # an administrator's request stands
            other.execute("SELECT pg_terminate_backend(%s)", worker)
        wait_until(lambda: server.workers(dbname="app") not in ([], worker))
        wait_until(lambda: server.query("SELECT held FROM eskit_lease.bridges", dbname="app") == [(True,)])
        server.stop()
    assert not server.logged("immediate shutdown")


def test_drop_and_create_extension_under_other_connections(server, connect):
    conn, other = connect(), connect()
    old, waiter = Session(conn, "old", ttl="60 s"), Session(other, "waiter", ttl="60 s")
    old_fence = old.take("r")
    waiter.queue("r")
    assert old.heartbeat().alive
    connect().execute("DROP EXTENSION eskit_lease")
    for session in (old, waiter):
        with pytest.raises((psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedFunction)):
            session.heartbeat()
    left = "SELECT count(*) FROM pg_depend WHERE refclassid = 'pg_extension'::regclass AND refobjid NOT IN (SELECT oid FROM pg_extension)"
    assert conn.execute(left).fetchone() == (0,)
    conn.execute("CREATE EXTENSION eskit_lease")
    # The connections have plans and slots that they got before the drop.
    assert old.heartbeat().reason == "unknown_session"
    assert waiter.heartbeat().reason == "unknown_session"
    new = Session(other, "new", ttl="1 s")
    assert new.take("r") > old_fence
    after = Session(conn, "after").queue("r")
    after.wait_for("r")
    assert after.fences["r"] > new.fences["r"]
    assert server.workers("launcher")


def test_drop_extension_is_blocked_by_nothing_of_the_worker(connect):
    conn = connect()
    for i in range(5):
        session = Session(conn, f"round {i}")
        session.take("r")
        session.release("r")  # the worker is about to notify
        conn.execute("SET lock_timeout = '10 s'")
        conn.execute("DROP EXTENSION eskit_lease")
        conn.execute("CREATE EXTENSION eskit_lease")


MANY_SESSIONS = "SELECT session FROM generate_series(1, 500) AS n, LATERAL eskit_lease.session_open('one of many ' || n, '3 s')"
# More than a transaction notes one by one, so the worker rescans the database.
MANY_LEASES = "SELECT count(*) FROM eskit_lease.lease_acquire_many(ARRAY(SELECT 'r' || i FROM generate_series(1, 1100) AS i), %s)"
IN_THE_MIDDLE = """
    SELECT pid FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
    WHERE a.datname = %s AND a.backend_type = 'eskit_lease worker' AND l.relation = 'eskit_lease._sessions'::regclass"""


def test_drop_extension_never_deadlocks_with_the_worker(server, db, connect):
    """Drops the extension again and again while the worker rescans hundreds of sessions."""
    conn, watcher = connect(), connect()
    conn.execute("SET deadlock_timeout = '10 ms'")  # so that this connection would detect the deadlock
    met = 0
    for _ in range(10):
        session, *_ = conn.execute(MANY_SESSIONS).fetchone()
        rescans = stat(conn, "rescans")
        conn.execute(MANY_LEASES, (session,))

        def found():
            nonlocal met
            met += (there := bool(watcher.execute(IN_THE_MIDDLE, (db,)).fetchall()))
            return there or stat(watcher, "rescans") > rescans

        wait_until(found, pause=0)
        conn.execute("DROP EXTENSION eskit_lease")
        conn.execute("CREATE EXTENSION eskit_lease")
    print(f"met the worker {met} times")
    assert server.workers("launcher")


def test_an_extension_that_is_dropped_and_made_again_and_is_not(connect):
    """The drop and creation are rolled back. A sweep in that transaction takes the sessions for those of a former
    extension."""
    conn, other = connect(), connect(autocommit=False)
    session = Session(conn, ttl="60 s")
    fence = session.take("r")
    other.execute("DROP EXTENSION eskit_lease")
    other.execute("CREATE EXTENSION eskit_lease")
    call(other, "session_sweep")
    other.rollback()
    assert session.heartbeat().alive
    assert session.acquire("r").fence == fence
