"""session_wait: push for clients that cannot LISTEN, direct and through a pooler in transaction mode."""

import os
import re
import subprocess
import sys
import time
import uuid

import psycopg
import pytest
from client import Session, best_of, call, rows, stat
from conftest import MAJOR, ROOT, once, wait_until

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
    """PostgreSQL's own client_connection_check_interval costs the same two lines: the FATAL and its statement. A
    terminated backend leaves two as well, and since PostgreSQL 19 a third, which says who terminated it."""
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
        each = 3 if terminates and int(MAJOR) >= 19 else 2
        assert len(lines) == each * waiters, "\n".join(lines)


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


def test_trust_counts_from_the_start_of_the_wait(connect):
    """A client whose next call takes no longer than its wait trusts its session all the time."""
    one, other = (Session(connect(), name, ttl="6 s") for name in ("one", "other"))
    assert one.wait("1 s").trust_ms > 5_500
    answers = rows(other.conn, "session_wait_many", [one.id, other.id], [one.revision, other.revision], "1 s")
    assert all(answer.reason == "timeout" and answer.trust_ms > 5_500 for answer in answers)


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
        assert 75 <= answer.retry_ms <= 100, "the first to be refused is back soon"
        for timeout, most in (("10 ms", 100), ("1 s", 1000)):
            assert max(sessions[2].wait(timeout).retry_ms for _ in range(30)) <= most
        assert max(sessions[2].wait().retry_ms for _ in range(50)) > 500, "the more are refused, the later each is back"
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


def test_late_heartbeats_are_counted_and_get_no_wait(connect):
    session, other = Session(connect(), ttl="10 s"), Session(connect(), ttl="20 s")
    assert session.wait("10 ms").reason == "timeout" and stat(session.conn, "heartbeats_late") == 0
    time.sleep(5.5)
    answer = session.wait()
    assert (answer.alive, answer.reason) == (True, "wait_limit") and 0 < answer.retry_ms <= 100
    assert (stat(session.conn, "heartbeats_late"), stat(session.conn, "waits_refused")) == (1, 1)
    assert session.wait("10 ms").reason == "timeout", "the next one is in time"
    time.sleep(5.5)
    assert session.heartbeat().reason == "alive" and stat(session.conn, "heartbeats_late") == 2
    assert other.wait("0").reason == "timeout" and stat(session.conn, "heartbeats_late") == 3, "it asks for no wait"


def test_a_call_that_does_not_wait_needs_no_place(server, connect):
    server.set(eskit_lease__max_waiting=0)
    try:
        session = Session(connect(), ttl="60 s")
        wait_until(lambda: session.conn.execute("SHOW eskit_lease.max_waiting").fetchone() == ("0",))
        assert session.wait("0").reason == "timeout"
        many = rows(session.conn, "session_wait_many", [session.id], [session.revision], "0")
        assert [answer.reason for answer in many] == ["timeout"]
        assert stat(session.conn, "waits_refused") == 0
        assert session.wait("1 ms").reason == "wait_limit"
    finally:
        server.set(eskit_lease__max_waiting=None)


def test_a_wait_on_the_connection_of_an_attached_session_needs_no_place(server, connect):
    server.set(eskit_lease__max_waiting=0)
    try:
        attached, other = Session(connect(), ttl="60 s", attach=True), Session(connect(), ttl="60 s")
        for session in (attached, other):
            wait_until(lambda: session.conn.execute("SHOW eskit_lease.max_waiting").fetchone() == ("0",))
        assert attached.wait("10 ms").reason == "timeout"
        assert other.wait("10 ms").reason == "wait_limit"
        assert call(other.conn, "session_wait", attached.id, attached.revision, "10 ms").reason == "wait_limit"
    finally:
        server.set(eskit_lease__max_waiting=None)


def test_by_default_half_of_a_stock_pool_waits(connect, background):
    sessions = [Session(connect(), ttl="60 s") for _ in range(10)]  # a tenth of max_connections, as it is by default
    waits = [background(session.wait, "3 s") for session in sessions]
    wait_until(lambda: waiting_in(sessions[0].conn if waits[0].done() else connect()) == 10)
    assert Session(connect()).wait().reason == "wait_limit"
    assert {wait.result().reason for wait in waits} == {"timeout"}


class Host:
    """Several sessions for which one connection waits."""

    def __init__(self, conn, sessions):
        self.conn, self.sessions = conn, sessions

    def wait(self, timeout=None):
        ids = [session.id for session in self.sessions]
        answers = rows(self.conn, "session_wait_many", ids, [session.revision for session in self.sessions], timeout)
        assert [answer.session for answer in answers] == ids
        return answers

    def reasons(self, timeout=None):
        return [answer.reason for answer in self.wait(timeout)]


def test_waiting_for_many(server, db, connect, via, background):
    holder, host = Session(connect(), "holder"), Host(connect(via), [Session(connect(), f"c{i}", ttl="60 s") for i in range(50)])
    assert host.reasons("10 ms") == ["timeout"] * 50

    def from_release_to_told():
        fence = holder.take("r")
        host.sessions[17].queue("r")
        told = background(lambda: (host.wait(), time.monotonic()))
        wait_until(lambda: waiting(server, db))
        assert waiting_in(holder.conn) == 1, "one place"
        released_at = time.monotonic()
        assert call(holder.conn, "lease_release", "r", fence)
        answers, told_at = told.result()
        assert [answer.reason for answer in answers] == ["alive"] * 17 + ["changed"] + ["alive"] * 32
        assert all(answer.alive and answer.trust_ms > 50_000 for answer in answers)
        host.sessions[17].revision = answers[17].revision
        assert host.sessions[17].acquire("r").granted and host.sessions[17].release("r")
        host.sessions[17].revision = host.sessions[17].heartbeat().revision
        return told_at - released_at

    best_of(20, 20, from_release_to_told)


def test_waiting_for_many_is_a_heartbeat_of_each(connect):
    host = Host(connect(), [Session(connect(), ttl=ttl) for ttl in ("3 s", "4 s", "60 s")])
    began = time.monotonic()
    while time.monotonic() < began + 6:
        answers = host.wait()
        assert all(answer.alive and answer.reason == "heartbeat" for answer in answers)
    assert [session.heartbeat().alive for session in host.sessions] == [True] * 3


def test_waiting_for_many_answers_for_those_that_ended(server, db, connect, background):
    host, closer = Host(connect(), [Session(connect(), ttl="60 s") for _ in range(3)]), connect()
    told = background(host.reasons)
    wait_until(lambda: waiting(server, db))
    assert host.sessions[1].close()
    assert told.result() == ["alive", "expired", "alive"]
    asked = time.monotonic()
    assert host.reasons() == ["alive", "expired", "alive"] and time.monotonic() - asked < 2, "at once"
    del host.sessions[1]
    assert host.reasons("10 ms") == ["timeout"] * 2
    assert waiting_in(closer) == 0


def test_waiting_for_many_grants_for_a_bounded_time(no_worker, connect):
    """At the end of its wait the call grants to its sessions, for a part of the shortest TTL. It begins with another
    session each time, so in the end all of them have what they wait for."""
    conn, holder = connect(), Session(connect(), "holder", ttl="5 s")
    waiters = [Session(conn, f"waiter {number}", ttl="600 s") for number in range(20)]
    names = {waiter.id: [f"{number} {name}" for name in range(500)] for number, waiter in enumerate(waiters)}
    wanted = sum(names.values(), [])
    assert all(answer.granted for answer in rows(holder.conn, "lease_acquire_many", wanted, holder.id))
    queue = "SELECT bool_and(reason = 'queued') FROM unnest(%s::text[]) AS name, eskit_lease.lease_acquire(name, %s, true)"
    for waiter in waiters:
        assert conn.execute(queue, (names[waiter.id], waiter.id)).fetchone() == (True,)
        holder.heartbeat()
    wait_until(lambda: holder.expired(conn))
    host = Host(conn, [*waiters, Session(conn, "short", ttl="1 s")])
    assert all(answer.alive for answer in host.wait("0"))
    served = conn.execute("SELECT count(DISTINCT session) FROM eskit_lease._leases WHERE session = ANY(%s)", (list(names),))
    assert 1 <= served.fetchone()[0] < len(waiters)
    host.sessions.pop()
    held = "SELECT count(*) FROM eskit_lease._leases WHERE session = ANY(%s)"

    def all_served():
        for session, answer in zip(host.sessions, host.wait("0"), strict=True):
            session.revision = answer.revision
        return conn.execute(held, (list(names),)).fetchone() == (len(wanted),)

    wait_until(all_served)


@pytest.mark.parametrize("end", ["pg_terminate_backend", "pg_cancel_backend"])
def test_waiting_for_many_gives_its_place_back(server, db, connect, background, end):
    host = Host(connect(), [Session(connect(), ttl="60 s") for _ in range(3)])
    told = background(host.wait)
    (pid,) = wait_until(lambda: waiting(server, db))
    server.query(f"SELECT {end}(%s)", pid)
    with pytest.raises(psycopg.Error):
        told.result()
    wait_until(lambda: waiting_in(host.sessions[0].conn) == 0)


def test_refusals_of_waiting_for_many(server, db, connect):
    conn = connect()
    session = Session(conn, ttl="60 s")
    asked = "SELECT * FROM eskit_lease.session_wait_many(%s::uuid[], %s::bigint[], '0')"
    for sessions, revisions, sqlstate in (
        ([session.id], [0, 1], "22023"), ([], [], "22023"), ([session.id] * 1001, [0] * 1001, "22023"), ([None], [0], "22004"), ([session.id], [None], "22004"),
        (None, [0], "22004"), ([session.id], None, "22004"),
    ):  # fmt: skip
        with pytest.raises(psycopg.Error) as refused:
            conn.execute(asked, (sessions, revisions))
        assert refused.value.sqlstate == sqlstate
    server.query("CREATE ROLE other_waiter LOGIN PASSWORD 'x'")
    try:
        conn.execute("SELECT eskit_lease.grant_consumer('other_waiter')")
        conn.execute("SET ROLE other_waiter")
        own = Session(conn, ttl="60 s")
        assert [answer.alive for answer in Host(conn, [own]).wait("0")] == [True]
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            Host(conn, [own, session]).wait("0")
        conn.execute("RESET ROLE")
        unknown = rows(conn, "session_wait_many", [session.id, uuid.uuid4()], [session.revision, 0])
        assert [(answer.alive, answer.reason) for answer in unknown] == [(True, "alive"), (False, "unknown_session")]
    finally:
        conn.execute("DROP OWNED BY other_waiter")
        server.query("DROP ROLE other_waiter")
