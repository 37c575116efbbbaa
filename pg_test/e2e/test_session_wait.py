"""session_wait: push for clients that cannot LISTEN, direct and through a pooler in transaction mode."""

import os
import re
import subprocess
import sys
import time

import pytest
from client import Session, best_of, call, stat
from conftest import ROOT, once, wait_until

WAITING = """
    SELECT pid FROM pg_stat_activity
    WHERE datname = %s AND state = 'active' AND query LIKE '%%session_wait%%' AND pid <> pg_backend_pid()"""

CHILD = """
import sys, psycopg
conn = psycopg.connect(sys.argv[1], autocommit=True, prepare_threshold=None)
conn.execute("SELECT reason FROM eskit_lease.session_wait(%s, %s)", (sys.argv[2], int(sys.argv[3])))
"""


@pytest.fixture(params=["direct", "pgbouncer"])
def via(request, server):
    return server if request.param == "direct" else request.getfixturevalue("pgbouncer")


def waiting(server, db):
    return [pid for (pid,) in server.query(WAITING, db)]


def waiting_in(conn):
    """Returns how many calls wait, as shared memory counts them."""
    return stat(conn, "calls_waiting")


def test_returns_within_20_ms_of_the_grant(server, db, connect, via, background):
    holder, waiter = connect(via), connect(via)
    leader, follower = Session(holder, "leader"), Session(waiter, "follower")

    def from_release_to_told():
        leader.take("r")
        follower.queue("r")
        told = background(follower.wait_for, "r")
        wait_until(lambda: waiting(server, db))
        released_at = time.monotonic()  # before the grant
        assert leader.release("r")
        late = told.result() - released_at
        assert follower.release("r")
        return late

    best_of(20, 20, from_release_to_told)


def test_client_killed_while_waiting_frees_its_backend(server, db, connect, via):
    session = Session(connect(via), "waiter", ttl="60 s")

    def from_kill_to_gone():
        with subprocess.Popen([sys.executable, "-c", CHILD, via.dsn(db), str(session.id), str(session.revision)]) as child:
            (pid,) = wait_until(lambda: waiting(server, db))
            killed_at = time.monotonic()
            child.kill()
        wait_until(lambda: pid not in waiting(server, db))
        assert call(connect(via), "session_heartbeat", session.id).alive
        return time.monotonic() - killed_at

    best_of(5, 1000, from_kill_to_gone)
    assert waiting_in(connect()) == 0


def test_a_client_killed_while_waiting_costs_two_lines_of_the_log(server, db, connect):
    """As many as PostgreSQL's own client_connection_check_interval: the FATAL and its statement. A terminated backend leaves as many."""
    session, waiters = Session(connect(), "waiter", ttl="60 s"), 5
    arguments = [sys.executable, "-c", CHILD, server.dsn(db), str(session.id), str(session.revision)]
    for terminates, said in ((False, "connection to client lost"), (True, "terminating connection due to administrator command")):
        children = [subprocess.Popen(arguments, stderr=subprocess.DEVNULL) for _ in range(waiters)]
        pids = wait_until(lambda: len(found := waiting(server, db)) == waiters and found)
        before = len(server.logged(""))
        for pid, child in zip(pids, children, strict=True):
            if terminates:
                server.query("SELECT pg_terminate_backend(%s)", pid)
            else:
                child.kill()
        for child in children:
            child.wait()
        wait_until(lambda: not waiting(server, db))
        lines = server.logged("")[before:]
        assert sum(said in line for line in lines) == waiters
        assert len(lines) == 2 * waiters, "\n".join(lines)


@once
def test_waits_stay_out_of_the_slow_query_log(server, db, connect):
    """By the settings that the documentation gives for a consumer's role."""
    documented = re.findall(r"ALTER ROLE billing (SET .*;)", (ROOT / "docs/reference/privileges.md").read_text())
    conn = connect()
    conn.execute(f"CREATE ROLE slow_waits LOGIN PASSWORD '{os.environ['PGPASSWORD']}'")
    try:
        call(conn, "grant_consumer", "slow_waits")
        for setting in documented:
            conn.execute(f"ALTER ROLE slow_waits {setting}")
        server.set(log_min_duration_statement="100ms")
        wait_until(lambda: conn.execute("SHOW log_min_duration_statement").fetchone() == ("100ms",))
        logged = {}
        for role in ("postgres", "slow_waits"):
            with server.connect(db, user=role) as waits:
                before = len(server.logged("session_wait"))
                Session(waits, ttl="60 s").wait("300 ms")
            logged[role] = len(server.logged("session_wait")) - before
        assert len(documented) == 2 and logged["postgres"] >= 1 and logged["slow_waits"] == 0
    finally:
        server.set(log_min_duration_statement=None)
        conn.execute("DROP OWNED BY slow_waits; DROP ROLE slow_waits")


def test_answers_in_time_for_the_next_heartbeat(connect):
    session = Session(connect(), ttl="6 s")
    answer = session.wait("10 s")
    assert (answer.alive, answer.reason) == (True, "heartbeat")
    assert 1.9 <= time.monotonic() - session.asked_at < 5.5
    assert answer.trust_ms > 500


def test_timeout(connect):
    session = Session(connect())
    answer = session.wait("150 ms")
    assert (answer.alive, answer.reason) == (True, "timeout")
    assert 0.14 <= time.monotonic() - session.asked_at < 5
    assert session.wait("0 s").reason == "timeout"


def test_is_capped_by_max_wait(server, connect):
    session = Session(connect(), ttl="60 s")
    server.set(eskit_lease__max_wait="300ms")
    try:
        wait_until(lambda: session.conn.execute("SHOW eskit_lease.max_wait").fetchone() == ("300ms",))
        assert session.wait("1 hour").reason == "timeout"
        assert time.monotonic() - session.asked_at < 5
        assert session.wait().reason == "timeout"
    finally:
        server.set(eskit_lease__max_wait=None)


def test_counts_as_a_heartbeat(connect):
    session = Session(connect(), ttl="3 s")
    opened_at = time.monotonic()
    while time.monotonic() < opened_at + 4:
        assert session.wait().alive
    assert session.heartbeat().alive


def test_waits_no_longer_than_its_session_lives(connect, background):
    session, closer = Session(connect(), ttl="60 s"), connect()
    told = background(session.wait)
    wait_until(lambda: waiting_in(closer))
    assert call(closer, "session_close", session.id)
    answer = told.result()
    assert (answer.alive, answer.reason) == (False, "expired")
    assert time.monotonic() - session.asked_at < 9


def test_beyond_max_waiting_it_answers_at_once(server, connect, background):
    server.set(eskit_lease__max_waiting=2)
    try:
        sessions = [Session(connect(), ttl="60 s") for _ in range(4)]
        for session in sessions:
            wait_until(lambda: session.conn.execute("SHOW eskit_lease.max_waiting").fetchone() == ("2",))
        waits = [background(session.wait) for session in sessions[:2]]
        wait_until(lambda: waiting_in(sessions[3].conn) == 2)
        answer = sessions[2].wait()
        assert (answer.alive, answer.reason) == (True, "wait_limit")
        assert time.monotonic() - sessions[2].asked_at < 2
        sessions[2].take("r")  # changes nothing for the waiting calls
        for session in sessions[:2]:
            assert call(sessions[3].conn, "session_close", session.id)
        assert [wait.result().alive for wait in waits] == [False, False]
        assert sessions[3].wait("10 ms").reason == "timeout", "places are given back"
    finally:
        server.set(eskit_lease__max_waiting=None)


@pytest.mark.parametrize("end", ["pg_terminate_backend", "pg_cancel_backend"])
def test_ended_while_waiting_gives_its_place_back(server, db, connect, background, end):
    session = Session(connect(), ttl="60 s")
    waiter = connect()
    wait = background(call, waiter, "session_wait", session.id, session.revision)
    (pid,) = wait_until(lambda: waiting(server, db))
    wait_until(lambda: waiting_in(session.conn) == 1)  # PostgreSQL shows the call before it has its place
    session.conn.execute(f"SELECT {end}({pid})")
    assert wait.exception() is not None
    wait_until(lambda: waiting_in(session.conn) == 0)
    assert session.heartbeat().alive
