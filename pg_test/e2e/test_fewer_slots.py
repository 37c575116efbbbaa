"""More living sessions than slots: after a restart with fewer, and on a promoted standby that has fewer."""

import time

import psycopg
import pytest
from client import Session, call, rows
from conftest import Server, caught_up, cut_off, promote, standby_of, wait_until

SLOTS, LEADERS, TTL = 16, 40, 10
FULL = f"no slot among the {SLOTS} of eskit_lease.max_sessions"


@pytest.fixture
def server():
    server = Server("e2e-slots", "eskit_lease.max_sessions = 100", f"max_connections = {SLOTS + 20}")
    server.query("CREATE EXTENSION eskit_lease")
    yield server
    server.stop()


@pytest.fixture
def fewer(server, request):
    """Gives a function that has the server, or a promoted standby, go on with fewer slots, and returns that server."""
    standbys = []

    def shrink():
        if request.param == "restart":
            server.set(eskit_lease__max_sessions=SLOTS)
            server.restart()
            return server
        standby = standby_of(server, "e2e-slots-standby")
        standbys.append(standby)
        with (standby.data / "postgresql.auto.conf").open("a") as settings:
            settings.write(f"eskit_lease.max_sessions = {SLOTS}\n")
        standby.restart()
        caught_up(server, standby)
        cut_off(standby)
        promote(standby)
        return standby

    yield shrink
    for standby in standbys:
        standby.stop()


@pytest.mark.parametrize("fewer", ["restart", "promotion"], indirect=True)
def test_who_finds_no_slot_keeps_what_it_has_for_its_ttl(server, fewer):
    with server.connect() as conn:
        waiter = Session(conn, "waiter", ttl="120 s")
        leaders = [Session(conn, f"leader {i}", ttl=f"{TTL} s") for i in range(LEADERS)]
        fences = [leader.take(f"r{i}") for i, leader in enumerate(leaders)]
        for i in range(LEADERS):
            waiter.queue(f"r{i}")
    server = fewer()
    wait_until(lambda: server.logged(FULL))
    with server.connect() as conn:
        for session in (waiter, *leaders):
            session.conn = conn
        answers = [leader.heartbeat() for leader in leaders]
        assert all(answer.alive and answer.trust_ms > 0 for answer in answers), "all hold what they held"
        without = [i for i, answer in enumerate(answers) if answer.reason == "sessions_full"]
        assert len(without) in (LEADERS - SLOTS, LEADERS - SLOTS + 1), "the waiter has a slot, or none"
        # A session without a slot works on, but gets nothing new, and no heartbeat extends its life.
        for i in without:
            call(conn, "fence_check", f"r{i}", fences[i])
            assert leaders[i].renew(f"r{i}").held
            assert leaders[i].acquire(f"r{i}").granted  # on a promoted standby, under a new fence
        first, second = (leaders[i] for i in without[:2])
        assert first.acquire("new").reason == "sessions_full"
        trusted = second.heartbeat().trust_ms
        began = time.monotonic()
        assert second.wait("1 s").reason == "sessions_full"
        waited = time.monotonic() - began
        assert waited > 0.9, "it does not spin"
        assert second.heartbeat().trust_ms <= trusted - 900
        with pytest.raises(psycopg.errors.ConfigurationLimitExceeded):
            Session(conn, "one too many")
        # A session without a slot may release what it has.
        fence = conn.execute("SELECT fence FROM eskit_lease.leases WHERE resource = %s", (f"r{without[0]}",)).fetchone()[0]
        assert call(conn, "lease_release", f"r{without[0]}", fence)
        assert call(conn, "session_close", second.id)
        assert second.heartbeat().reason in ("unknown_session", "expired")
        # Sessions with a slot live on by heartbeats, except a few silent ones. If the waiter has no slot, it gets one
        # of theirs in the end.
        silent = [i for i in range(LEADERS) if i not in without][:2]
        lost = [*without, *silent]
        kept = [leader for i, leader in enumerate(leaders) if i not in lost]

        def handed_over():
            assert all(leader.heartbeat().alive for leader in kept)
            waiter.heartbeat()
            held = [name for (name,) in conn.execute("SELECT resource FROM eskit_lease.leases WHERE consumer = 'waiter'")]
            return sorted(held) == sorted(f"r{i}" for i in lost)

        wait_until(handed_over, timeout=120, pause=0.1)
        assert not any(leaders[i].heartbeat().alive for i in lost)
        assert all(leader.heartbeat().reason == "alive" for leader in kept)


@pytest.mark.parametrize("fewer", ["restart"], indirect=True)
def test_waiting_for_many_that_have_no_slot(server, fewer):
    """A call waits for more sessions without slots than a process has stand-ins: all of them live, and the call
    waits."""
    with server.connect() as conn:
        sessions = [Session(conn, f"session {i}", ttl="600 s").id for i in range(100)]
    server = fewer()
    with server.connect() as conn:
        heartbeats = [call(conn, "session_heartbeat", session).reason for session in sessions]
        without = [session for session, reason in zip(sessions, heartbeats, strict=True) if reason == "sessions_full"]
        assert len(without) >= 100 - SLOTS
        began = time.monotonic()
        answers = rows(conn, "session_wait_many", without, [0] * len(without), "1 s")
        assert time.monotonic() - began > 0.9, "it does not spin"
        assert {(answer.alive, answer.reason) for answer in answers} == {(True, "sessions_full")}


@pytest.mark.parametrize("fewer", ["restart"], indirect=True)
def test_a_sweep_by_hand_finds_them(server, fewer):
    server.set(eskit_lease__worker="off")
    with server.connect() as conn:
        leaders = [Session(conn, f"leader {i}", ttl="2 s") for i in range(LEADERS)]
        for i, leader in enumerate(leaders):
            leader.take(f"r{i}")
    server = fewer()
    with server.connect() as conn:
        notices = []
        conn.add_notice_handler(lambda notice: notices.append((notice.sqlstate, notice.message_primary)))
        conn.execute("SELECT eskit_lease.session_sweep()")
        assert [(sqlstate, FULL in message) for sqlstate, message in notices] == [("53400", True)]

        def swept():
            conn.execute("SELECT eskit_lease.session_sweep()")
            return conn.execute("SELECT count(*) FROM eskit_lease._sessions").fetchone() == (0,)

        wait_until(swept, timeout=30, pause=0.1)
        assert conn.execute("SELECT count(*) FROM eskit_lease._leases WHERE session IS NOT NULL").fetchone() == (0,)
        assert len(notices) == 1, "said once"
