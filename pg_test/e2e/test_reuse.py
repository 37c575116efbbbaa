"""Slots in shared memory: a slot is free as soon as nothing needs it, and calls about its former session do not affect
the next one."""

import os
import signal

import psycopg
import pytest
from client import Session, call, stat
from conftest import Server, wait_until

FEW = 16


@pytest.fixture
def few():
    server = Server("e2e-few", f"eskit_lease.max_sessions = {FEW}", "max_prepared_transactions = 5")
    server.query("CREATE EXTENSION eskit_lease")
    yield server
    server.stop()


def refused(function, *args):
    with pytest.raises(psycopg.errors.ConfigurationLimitExceeded) as error:
        function(*args)
    return error.value


def slots(conn):
    return stat(conn, "slots_taken"), stat(conn, "slots_of_ended")


def test_slots_of_ended_sessions_are_free_at_once(few):
    with few.connect() as conn:
        holder = Session(conn, "holder", ttl="1 h")
        for turn in range(100):
            assert call(conn, "lease_release", "r", call(conn, "lock_acquire", "r", "owner", "1 h").fence)
            session = Session(conn, "short", ttl="1 h")
            if turn % 2:
                session.take("s")
            assert session.close()
            assert session.heartbeat().reason in ("expired", "unknown_session")
        assert slots(conn) == (1, 0)
        for turn in range(3):
            dying = [Session(conn, "dying", ttl="1 s") for _ in range(15)]
            refused(Session, conn, "one too many")
            wait_until(lambda: all(session.expired(conn) for session in dying) and slots(conn) == (1, 0))  # noqa: B023
        assert holder.heartbeat().alive and holder.acquire("r").granted


def test_slots_of_sessions_of_before_a_restart_are_kept(few):
    """Their rows, which an old snapshot may still show, would otherwise revive them."""
    with few.connect() as conn:
        sessions = [Session(conn, f"session {i}", ttl="1 h") for i in range(12)]
    few.restart()
    with few.connect() as conn:
        for session in sessions:
            session.conn = conn
            assert session.heartbeat().alive
        assert all(session.close() for session in sessions)
        wait_until(lambda: slots(conn) == (12, 12))
        later = [Session(conn, "later", ttl="1 h") for _ in range(4)]
        assert slots(conn) == (16, 12)
        refused(Session, conn, "one too many")
        assert not any(session.heartbeat().alive for session in sessions)
        assert later[0].close() and Session(conn, "later").heartbeat().alive


def test_an_attachment_of_before_ends_nobody_else(few):
    """When a connection ends, other sessions have the slots of sessions that were once attached to it."""
    with few.connect() as conn, few.connect() as leaver:
        for _ in range(16):
            Session(leaver, "closed", ttl="1 h", attach=True).close()
            with leaver.transaction(force_rollback=True):
                call(leaver, "session_open", "undone", "1 h", True)
        mine = Session(leaver, "attached", ttl="1 h", attach=True)
        others = [Session(conn, "other", ttl="1 h") for _ in range(15)]
        pids = "SELECT count(attached_pid) FROM eskit_lease.sessions"
        assert conn.execute(pids).fetchone() == (1,)
        leaver.close()
        wait_until(lambda: mine.expired(conn))
        assert all(session.heartbeat().alive for session in others)


def test_what_one_role_may_have(few):
    few.query(f"CREATE ROLE app LOGIN PASSWORD '{os.environ['PGPASSWORD']}'")
    few.query("SELECT eskit_lease.grant_consumer('app')")
    few.query("ALTER ROLE app SET eskit_lease.max_sessions_per_role = 3")
    with few.connect(user="app") as conn, few.connect() as other:
        sessions = [Session(conn, f"session {i}", ttl="1 h") for i in range(3)]
        for function in (Session, lambda conn, name: call(conn, "lock_acquire", name, "owner", "1 h")):
            error = refused(function, conn, "one too many")
            assert (error.sqlstate, error.diag.message_detail) == ("53400", "eskit_lease.max_sessions_per_role is 3.")
            assert "app" in error.diag.message_primary and "eskit_lease.max_sessions_per_role" in error.diag.message_hint
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute("SET eskit_lease.max_sessions_per_role = 0")
        assert Session(other, "of another role", ttl="1 h").heartbeat().alive
        for _ in range(20):
            assert sessions.pop().close()
            sessions.append(Session(conn, "another", ttl="1 h"))
    few.restart()
    with few.connect(user="app") as conn:
        for session in sessions:
            session.conn = conn
            assert session.heartbeat().alive, "whom it has is not bounded again"


def test_many_short_locks(few):
    """Locks with a TTL of an hour, a hundred times as many as slots, while another connection works."""
    with few.connect() as conn, few.connect() as other:
        working = Session(other, "working", ttl="1 h")
        conn.execute(
            """DO $$ BEGIN
                FOR turn IN 1 .. 1600 LOOP
                    PERFORM eskit_lease.lease_release('r', fence) FROM eskit_lease.lock_acquire('r', 'owner', '1 h');
                    COMMIT;
                END LOOP;
            END $$"""
        )
        assert slots(conn) == (1, 0)
        assert len([Session(conn, "later", ttl="1 h") for _ in range(FEW - 1)]) == FEW - 1
        assert working.heartbeat().alive


def test_grace_and_takeover(few):
    with few.connect() as conn:
        session = Session(conn, "consumer", ttl="1 h")
        for _ in range(FEW + 4):
            fence = session.take("r")
            assert call(conn, "lease_release", "r", fence, "1 h")
            assert slots(conn) == (2, 0), "what is in grace has a session of its own"
            assert session.take("r") == fence and slots(conn) == (1, 0)
            successor = Session(conn, "consumer", ttl="1 h", takeover=True)
            assert not session.heartbeat().alive
            assert successor.take("r") > fence
            assert successor.release("r")
            session = successor
            # The worker sweeps the session that was taken over.
            wait_until(lambda: slots(conn) == (1, 0))


def test_a_prepared_end_keeps_its_slot(few):
    with few.connect() as conn, few.connect() as other:
        closing = Session(conn, "closing", ttl="1 h")
        others = [Session(conn, "other", ttl="1 h") for _ in range(FEW - 1)]
        for end, alive in ("ROLLBACK", True), ("COMMIT", False):
            other.execute("BEGIN")
            assert call(other, "session_close", closing.id)
            other.execute("PREPARE TRANSACTION 'end'")
            assert closing.heartbeat().reason == "closing"
            refused(Session, conn, "one too many")
            assert slots(conn) == (FEW, 0)
            conn.execute(f"{end} PREPARED 'end'")
            wait_until(lambda: closing.heartbeat().alive == alive)  # noqa: B023
        wait_until(lambda: slots(conn) == (FEW - 1, 0))
        others.append(Session(conn, "next", ttl="1 h"))
        assert all(session.heartbeat().alive for session in others)


def test_a_call_that_sleeps_while_its_slot_changes_hands(few, background):
    """The call's process is stopped meanwhile, and learns of its session's end only when another session has the
    slot."""
    with few.connect() as conn, few.connect() as sleeper, few.connect() as waiter:
        others = [Session(conn, "other", ttl="1 h") for _ in range(FEW - 1)]
        former = Session(sleeper, "former", ttl="1 h")
        call_of_former = background(former.wait)
        wait_until(lambda: stat(conn, "calls_waiting") == 1)
        os.kill(sleeper.info.backend_pid, signal.SIGSTOP)
        try:
            assert call(conn, "session_close", former.id)
            holder = others[0]
            holder.take("r")
            following = Session(waiter, "next", ttl="1 h")
            refused(Session, conn, "one too many")
            following.queue("r")
            call_of_next = background(following.wait_for, "r")
            wait_until(lambda: stat(conn, "calls_waiting") == 2)
        finally:
            os.kill(sleeper.info.backend_pid, signal.SIGCONT)
        assert call_of_former.result(60).reason in ("expired", "unknown_session")
        wait_until(lambda: stat(conn, "calls_waiting") == 1)
        assert holder.release("r")
        assert call_of_next.result(60)
        assert all(session.heartbeat().alive for session in others)
