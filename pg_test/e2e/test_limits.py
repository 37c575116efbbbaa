"""Limits: a full table raises a clear error and recovers; a cancelled call leaves nothing held."""

import psycopg
import pytest
from client import Session, call
from conftest import Server, wait_until
from exported import measured


@pytest.fixture
def small():
    server = Server("e2e-small", "eskit_lease.max_sessions = 16", "eskit_lease.max_databases = 2")
    server.query("CREATE EXTENSION eskit_lease")
    yield server
    server.stop()


def refused(function, *args):
    with pytest.raises(psycopg.Error) as error:
        function(*args)
    return error.value


def test_too_many_sessions(small):
    with small.connect() as conn:
        sessions = [Session(conn, f"session {i}", ttl="4 s" if i < 8 else "60 s") for i in range(16)]
        error = refused(Session, conn, "one too many")
        assert error.sqlstate == "53400"
        assert "eskit_lease.max_sessions is 16" in error.diag.message_detail
        assert "eskit_lease.max_sessions" in error.diag.message_hint
        assert conn.execute("SELECT count(*) FROM eskit_lease.sessions").fetchone() == (16,), "nothing changed"
        error = refused(call, conn, "lock_acquire", "r", "owner", "1 s")
        assert error.sqlstate == "53400"
        assert conn.execute("SELECT count(*) FROM eskit_lease.leases").fetchone() == (0,)
        assert all(session.heartbeat().alive for session in sessions)
        # There is room again as soon as a session is closed, or swept.
        for session in sessions[:4]:
            session.close()

        later = []

        def opened():
            assert all(session.heartbeat().alive for session in sessions[8:])
            try:
                later.append(Session(conn, "later", ttl="60 s"))
            except psycopg.errors.ConfigurationLimitExceeded:
                pass
            return len(later) == 8

        wait_until(opened, pause=0.05)
        assert all(session.heartbeat().alive for session in later)
        assert refused(Session, conn, "one too many").sqlstate == "53400"


def test_too_many_databases(small):
    with small.connect() as conn:
        first = Session(conn, "first", ttl="60 s")
        for name in ("second", "third"):
            conn.execute(f"CREATE DATABASE {name}")
            small.query("CREATE EXTENSION eskit_lease", dbname=name)
        with small.connect("second") as second:
            kept = Session(second, "second", ttl="4 s")
            with small.connect("third") as third:
                error = refused(Session, third, "third")
                assert error.sqlstate == "53400"
                assert "eskit_lease.max_databases is 2" in error.diag.message_detail
                assert error.diag.message_hint
                assert third.execute("SELECT eskit_lease.partition_for('x', 3)").fetchone()
                assert third.execute("SELECT count(*) FROM eskit_lease._sessions").fetchone() == (0,)
            assert kept.heartbeat().alive and first.heartbeat().alive
        # A dropped database's entry is free at the latest when its sessions would have ended.
        conn.execute("DROP DATABASE second WITH (FORCE)")

        def opened():
            with small.connect("third") as third:
                try:
                    return Session(third, "third at last").take("r")
                except psycopg.errors.ConfigurationLimitExceeded:
                    return None

        wait_until(opened, pause=0.05)
        assert small.workers("launcher")


LOCKS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = %s"
ENDS = ["statement_timeout", "lock_timeout", "cancel", "terminate"]


@pytest.mark.parametrize("function", ["lease_release", "lease_release_many", "session_close", "lease_force_release"])
@pytest.mark.parametrize("end", ENDS)
def test_release_that_is_cancelled_while_it_waits_for_a_fence(server, connect, background, end, function):
    conn, watcher, fenced = connect(), connect(), connect(autocommit=False)
    holder, rival = Session(watcher, "holder", ttl="60 s"), Session(watcher, "rival", ttl="60 s")
    fence = holder.take("r")
    call(fenced, "fence_check", "r", fence)
    pid = conn.info.backend_pid
    args = {
        "lease_release": ("r", fence), "lease_release_many": (["r"], holder.id),
        "session_close": (holder.id,), "lease_force_release": ("r", fence, "a test"),
    }[function]  # fmt: skip
    if end.endswith("timeout"):
        conn.execute(f"SET {end} = '50 ms'")
    release = background(call, conn, function, *args)
    if not end.endswith("timeout"):
        wait_until(lambda: watcher.execute("SELECT 1 FROM pg_locks WHERE pid = %s AND NOT granted", (pid,)).fetchone())
        watcher.execute(f"SELECT pg_{end}_backend({pid})")
    error = release.exception()
    expected = {"statement_timeout": "57014", "lock_timeout": "55P03", "cancel": "57014", "terminate": "57P01"}
    assert error.sqlstate == expected[end]
    if function == "lease_force_release":
        said = f'role "postgres" asks to release resource "r" under fence {fence} by force: a test'
        assert server.logged(said), "whatever comes of it"
    wait_until(lambda: watcher.execute(LOCKS, (pid,)).fetchone() == (0,))
    # The cancelled call has no effect: the holder lives, holds, and may go on with fenced work.
    assert holder.heartbeat().alive
    assert holder.renew("r").held
    assert rival.acquire("r").reason == "held"
    call(fenced, "fence_check", "r", fence)
    fenced.commit()
    holder.check("r")
    assert holder.release("r")
    assert rival.take("r") > fence


def test_acquire_never_waits_even_with_a_lock_timeout(connect):
    conn, other = connect(), connect(autocommit=False)
    session, rival = Session(conn, "session"), Session(conn, "rival")
    call(other, "lease_acquire", "r", session.id)
    conn.execute("SET lock_timeout = '1ms'")
    assert rival.acquire("r").reason == "busy"
    other.rollback()


def test_slots_of_ended_sessions_are_told(small):
    """No session lives, and no slot is free for one: the gauges show this before a session is refused."""
    small.set(eskit_lease__worker="off")
    with small.connect() as conn:
        for number in range(16):
            Session(conn, f"session {number}", ttl="1 s").acquire(f"r {number}")
        wait_until(lambda: measured(conn)["sessions"] == 0)
        found = measured(conn)
        assert found["slots_of_ended"] == found["slots_taken"] == found["max_sessions"] == 16
        call(conn, "session_sweep")
        assert measured(conn)["slots_of_ended"] == 0


def test_limits_of_the_ttl_that_contradict_are_told(server, connect):
    """The log tells it once for each change, and each caller that opens a session is told."""
    conn = connect()
    said = [len(server.logged(text)) for text in ("eskit_lease.min_ttl is 2 h", "eskit_lease.default_ttl is 10 s")]
    try:
        server.set(eskit_lease__min_ttl="2 h")
        wait_until(lambda: len(server.logged("WARNING:  eskit_lease: eskit_lease.min_ttl is 2 h, and eskit_lease.max_ttl 1 h")) == said[0] + 1)
        wait_until(lambda: conn.execute("SHOW eskit_lease.min_ttl").fetchone() == ("2h",))
        for ttl in (None, "90 min"):
            error = refused(call, conn, "session_open", "consumer", ttl)
            assert (error.sqlstate, "min_ttl is above eskit_lease.max_ttl" in error.diag.message_hint) == ("22023", True)
        server.set(eskit_lease__max_ttl="4 h")
        wait_until(lambda: len(server.logged("WARNING:  eskit_lease: eskit_lease.default_ttl is 10 s, and not within")) == said[1] + 1)
    finally:
        server.set(eskit_lease__min_ttl=None, eskit_lease__max_ttl=None)
    wait_until(lambda: conn.execute("SHOW eskit_lease.min_ttl").fetchone() == ("1s",))
    Session(conn)
