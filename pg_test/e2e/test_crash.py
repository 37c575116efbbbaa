"""Crashes and copies: no session expires early, every lease stays with its holder, and fences rise above all that were
ever granted."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psycopg
import pytest
from client import Session, call
from conftest import Server, wait_until


@pytest.fixture(scope="module")
def durable():
    server = Server("e2e-crash", "fsync = on")
    server.query("CREATE EXTENSION eskit_lease")
    yield server
    server.stop()


def crash(server):
    server.crash()


def stop_at_once(server):
    server.restart("immediate")


def restart(server):
    server.restart()


LEASES = "SELECT resource, consumer, state, fence FROM eskit_lease.leases WHERE resource LIKE 'c-%' ORDER BY resource"
GREATEST = "SELECT coalesce(max(fence), 0) FROM eskit_lease.leases"


@pytest.mark.parametrize(("how", "synchronous_commit"), [(crash, "on"), (crash, "off"), (stop_at_once, "off"), (restart, "on")])
def test_every_lease_is_where_it_was(durable, how, synchronous_commit):
    conn = durable.connect(options=f"-c synchronous_commit={synchronous_commit}")
    holders = [Session(conn, f"holder {i}", ttl="6 s") for i in range(3)]
    for i, holder in enumerate(holders):
        for j in range(20):
            holder.take(f"c-{how.__name__}-{synchronous_commit}-{i}-{j}")
    waiter = Session(conn, "waiter", ttl="60 s").queue(next(iter(holders[2].fences)))
    expected = [row for row in conn.execute(LEASES).fetchall() if row[2] == "held"]
    answered = max(max(holder.fences.values()) for holder in holders)  # since then no commit was waited for
    assert all(holder.heartbeat().alive for holder in holders)  # heartbeats write nothing
    recovering_at = time.monotonic()
    how(durable)
    with durable.connect() as conn:
        # Right after the recovery the first two sessions go on with their heartbeats.
        for session in [*holders, waiter]:
            session.conn = conn
        assert [row for row in conn.execute(LEASES).fetchall() if row[2] == "held"] == expected
        for holder in holders[:2]:
            assert holder.heartbeat().alive
        assert all(holders[0].renew(resource).held for resource in holders[0].fences)
        rival = Session(conn, "rival", ttl="60 s")
        assert rival.acquire(next(iter(holders[0].fences))).reason == "held"
        assert rival.take(f"c-new-{how.__name__}-{synchronous_commit}") > answered
        # The third session never comes back: it ends a TTL after the recovery, not before, and its leases are handed
        # over.
        lost = next(iter(holders[2].fences))
        assert waiter.heartbeat().alive

        def handed_over():
            for session in (*holders[:2], waiter, rival):
                assert session.heartbeat().alive
            return waiter.holds(lost)

        wait_until(handed_over, pause=0.02)
        assert time.monotonic() - recovering_at > 6
        assert waiter.fences[lost] > max(answered, rival.fences[f"c-new-{how.__name__}-{synchronous_commit}"])
        assert holders[2].heartbeat().reason in ("expired", "unknown_session")
        assert holders[1].release(next(iter(holders[1].fences)))
        for session in (*holders[:2], waiter, rival):
            assert session.close()


def test_not_before_recovery_plus_ttl(durable):
    """The clock starts at the end of recovery, however long the server was down and however late a client asks."""
    with durable.connect() as conn:
        session, waiter = Session(conn, "late", ttl="2 s"), Session(conn, "waiter", ttl="60 s")
        session.take("c-late")
        waiter.queue("c-late")
    durable.stop("immediate")
    wait_until(lambda: time.monotonic() > session.deadline)
    recovering_at = time.monotonic()
    durable.restart()
    with durable.connect() as conn:
        waiter.conn = conn
        wait_until(lambda: waiter.holds("c-late"), pause=0.02)
        assert time.monotonic() - recovering_at > 2
        assert waiter.close()


def test_answered_grants_survive_with_asynchronous_commit(durable):
    """Kills the server the instant that a grant is answered. If a grant did not flush its own WAL, one would be
    lost."""
    for i in range(3):
        conn = durable.connect(options="-c synchronous_commit=off")
        conn.execute("SELECT pg_switch_wal()")
        session = Session(conn, f"async {i}", ttl="30 s")
        fence = session.take(f"c-async-{i}")
        os.kill(durable.pid, signal.SIGSTOP)  # from here on nothing flushes WAL
        walwriter = (pid for (pid,) in conn.execute("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'"))
        os.kill(next(walwriter), signal.SIGKILL)
        os.kill(durable.pid, signal.SIGCONT)
        wait_until(lambda: conn.closed or conn.broken or not answers(conn))
        wait_until(lambda: up(durable))
        with durable.connect() as again:
            session.conn = again
            assert session.heartbeat().alive
            assert session.renew(f"c-async-{i}").held
            assert Session(again, "rival").take("c-after") > fence
            session.close()
            again.execute("SELECT eskit_lease.lease_release(resource, fence) FROM eskit_lease.leases WHERE resource = 'c-after'")


def answers(conn):
    try:
        return bool(conn.execute("SELECT 1"))
    except psycopg.Error:
        return False


def up(server):
    try:
        return server.query("SELECT 1")
    except psycopg.OperationalError:
        return False


def run(server, tool, *args, dbname="postgres"):
    command = [Path(os.environ["PG_BIN"]) / tool, "-d", server.dsn(dbname), *args]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_dump_restored_as_another_database(durable, tmp_path):
    with durable.connect() as conn:
        session = Session(conn, "dumped consumer", ttl="60 s")
        fences = [session.take(f"c-dump-{i}") for i in range(5)]
        dump = run(durable, "pg_dump", "--format=plain")
        assert "dumped consumer" not in dump and "c-dump" not in dump and str(session.id) not in dump
        assert "fence_seq" in dump
        conn.execute("DROP DATABASE IF EXISTS restored")
        conn.execute("CREATE DATABASE restored")
        (tmp_path / "dump.sql").write_text(dump)
        run(durable, "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", tmp_path / "dump.sql", dbname="restored")
        with durable.connect("restored") as other:
            assert other.execute("SELECT count(*) FROM eskit_lease.sessions").fetchone() == (0,)
            assert call(other, "session_heartbeat", session.id).reason == "unknown_session"
            assert Session(other, "restored").take("c-dump-0") > max(fences)
        assert session.heartbeat().alive
        assert session.close()
        conn.execute("DROP DATABASE restored WITH (FORCE)")


def test_copied_data_directory(durable):
    """The copy starts without recovery, after the original went on and granted more."""
    with durable.connect() as conn:
        session = Session(conn, "copied", ttl="30 s")
        session.take("c-copied")
    durable.stop()
    copied = Path(str(durable.data) + "-copied")
    shutil.rmtree(copied, ignore_errors=True)
    shutil.copytree(durable.data, copied)
    durable.restart()
    with durable.connect() as conn:
        original = Session(conn, "original", ttl="60 s")
        later = [original.take(f"c-later-{i}") for i in range(100)]
        original.close()
    copy = Server("e2e-copy", copy_of=copied)
    try:
        with copy.connect() as conn:
            session.conn = conn
            assert session.heartbeat().alive, "no session is expired early"
            assert session.renew("c-copied").held
            assert Session(conn, "in the copy", ttl="60 s").take("c-later-0") > max(later)
    finally:
        copy.stop()
        shutil.rmtree(copied)
