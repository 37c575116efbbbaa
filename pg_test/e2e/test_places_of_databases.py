"""More databases have the extension than there are places (max_databases): those in use have one."""

import time

import psycopg
import pytest
from client import Session, call, stat
from conftest import Server, once, wait_until

pytestmark = once
PLACES, NAMES = 4, [f"d{i}" for i in range(8)]
IN_USE = NAMES[-3:]  # those that a look at all databases comes to last


@pytest.fixture(scope="module")
def crowded():
    server = Server("e2e-places-of-databases", f"eskit_lease.max_databases = {PLACES}", "eskit_lease.execution_retention = 3")
    server.query("CREATE DATABASE made")
    server.query("CREATE EXTENSION eskit_lease", dbname="made")
    for name in NAMES:
        server.query(f"CREATE DATABASE {name} TEMPLATE made")
    yield server
    server.stop()


def looked_through(server):
    """Whether nothing is due in any database: each has been looked into."""
    return not server.workers()


def beats(server, leader, dbname):
    with server.connect(dbname) as conn:
        leader.conn = conn
        try:
            return leader.heartbeat().alive
        except psycopg.errors.ConfigurationLimitExceeded:
            return False


def test_those_in_use_have_a_place_after_a_restart(crowded):
    leaders, fences = {}, {}
    for name in IN_USE:
        with crowded.connect(name) as conn:
            conn.execute("SELECT eskit_lease.session_close(session) FROM eskit_lease.sessions")  # of a try before
            leaders[name] = Session(conn, f"leader of {name}", ttl="60 s")
            fences[name] = leaders[name].take("r")
    crowded.restart()
    # Until each database has been looked into, workers that are in others have the places.
    wait_until(lambda: looked_through(crowded) and all(beats(crowded, leaders[name], name) for name in IN_USE), pause=0.2)
    for _ in range(3):
        for name in IN_USE:
            with crowded.connect(name) as conn:
                leaders[name].conn = conn
                assert leaders[name].heartbeat().alive
                call(conn, "fence_check", "r", fences[name])
        # The others take turns, and can be used as before.
        for name in NAMES[:-3]:
            with crowded.connect(name) as conn:
                session = wait_until(lambda conn=conn: opened(conn), pause=0.1)
                fence = session.take("r")
                session.check("r")
                assert fence > 0 and session.release("r") and session.close()
    for name in IN_USE:
        with crowded.connect(name) as conn:
            assert stat(conn, "sessions_alive") == 1
            assert stat(conn, "databases_in_use") >= len(IN_USE)
            assert stat(conn, "heartbeats") >= 3, "it has had its place all the time"
            leaders[name].conn = conn
            leaders[name].close()


def opened(conn):
    """A session, once a place is free: a worker may still be in the database that is to give its up."""
    try:
        return Session(conn, "in turn", ttl="60 s")
    except psycopg.errors.ConfigurationLimitExceeded:
        return None


def test_what_is_kept_is_removed_where_a_place_was_given_up(crowded):
    with crowded.connect("d0") as conn:
        session = wait_until(lambda: opened(conn), pause=0.1)
        before = stat(conn, "since")
        fence = call(conn, "execution_begin", "k", session.id).fence
        call(conn, "execution_finish", "k", fence, "1")
        session.close()
        # A connection that is in no transaction keeps no place.
        for name in NAMES[1:]:
            with crowded.connect(name) as other:
                wait_until(lambda other=other: opened(other), pause=0.1).close()
        wait_until(lambda: stat(conn, "since") is None, timeout=30, pause=0.1)
        wait_until(lambda: conn.execute("SELECT count(*) FROM eskit_lease._executions").fetchone() == (0,), timeout=60, pause=0.1)
        time.sleep(1)
        session = wait_until(lambda: opened(conn), pause=0.1)
        assert stat(conn, "since") > before and stat(conn, "sessions_opened") == 1, "it counts anew"
        session.close()


def test_all_in_use(crowded):
    conns = [crowded.connect(name) for name in NAMES]
    try:
        sessions = [wait_until(lambda conn=conn: opened(conn), pause=0.1) for conn in conns[:PLACES]]
        assert stat(conns[0], "databases_in_use") == PLACES
        with pytest.raises(psycopg.errors.ConfigurationLimitExceeded):
            Session(conns[PLACES], "one too many")
        wait_until(lambda: crowded.logged(f"{PLACES} of {PLACES} places for databases"), timeout=60, pause=0.2)
        assert all(session.heartbeat().alive for session in sessions)
        # Also where nothing but an open transaction has to do with the entry: what it holds a reference to is not given to another.
        sessions[0].close()
        conns[0].execute("BEGIN")
        call(conns[0], "session_heartbeat", sessions[0].id)
        time.sleep(2)
        with pytest.raises(psycopg.errors.ConfigurationLimitExceeded):
            Session(conns[PLACES], "still one too many")
        conns[0].execute("COMMIT")
        assert wait_until(lambda: opened(conns[PLACES]), pause=0.1).heartbeat().alive
    finally:
        for conn in conns:
            conn.close()
