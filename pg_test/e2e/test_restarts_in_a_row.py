"""Across an orderly stop sessions keep their remaining TTL: a dead leader does not get its TTL again at each of several
restarts, and no session loses trust that it was given."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from client import Session, call
from conftest import Server, make_anew, standby_of, wait_until

TTL = 6
RUNS = 1  # seconds that the server runs, by which a silent session's remaining TTL shrinks
WHOLE = 0.5  # two sessions with the same TTL and the same start differ by microseconds
IGNORED = "eskit_lease: ignored"


@pytest.fixture(scope="module")
def server():
    server = Server("e2e-in-a-row", "max_prepared_transactions = 5")
    yield server
    server.stop()


@pytest.fixture
def conn(server):
    with server.connect() as conn:
        make_anew(conn)
        yield conn


def file_of(server):
    return server.data / "pg_stat/eskit_lease.stat"


def trust(server, session):
    """Returns a session's remaining seconds without keeping it alive; 0 if it has ended."""
    (left,) = server.query("SELECT sum(trust_ms) FROM eskit_lease.sessions WHERE session = %s", session.id)[0]
    return (left or 0) / 1000


def lag(server, silent, fresh):
    """Returns how many seconds the first session ends before the second."""
    ends = "SELECT expires_at FROM eskit_lease.sessions WHERE session = %s"
    return server.query(f"SELECT extract(epoch FROM ({ends}) - ({ends}))::float8", fresh.id, silent.id)[0][0]


def run_on(server):
    """Lets the server run for a while without heartbeats."""
    with server.connect() as conn:
        conn.execute("SELECT pg_sleep(%s)", (RUNS,))


def one_silent(server, conn):
    """Returns two sessions of one TTL. Since the server's start only the second has sent a heartbeat, so after an
    orderly stop the first has less TTL remaining."""
    silent, fresh = (Session(conn, name, ttl="120 s") for name in ("silent", "fresh"))
    server.restart()
    run_on(server)
    with server.connect() as conn:
        fresh.conn = conn
        assert fresh.heartbeat().alive
    return silent, fresh


def test_a_dead_leader(server, conn):
    leader, waiter = Session(conn, "leader", ttl=f"{TTL} s"), Session(conn, "waiter", ttl="120 s")
    leader.take("r")
    waiter.queue("r")
    told = leader.deadline
    for start in range(3):
        server.restart()
        assert trust(server, leader) <= TTL - start * RUNS * 2
        assert time.monotonic() + trust(server, leader) > told - 0.002, "never less than it was told"
        assert not file_of(server).exists()
        if start < 2:
            run_on(server)
            run_on(server)
    started = time.monotonic()
    with server.connect() as conn:
        waiter.conn = conn
        waiter.wait_for("r")
    assert time.monotonic() - started < TTL - RUNS, "a whole TTL after the last start"


def test_who_is_in_time_and_who_is_late(server, conn):
    late, in_time, attached, brief = (
        Session(conn, name, ttl=f"{ttl} s", attach=name == "attached")
        for name, ttl in (("late", TTL), ("in time", TTL), ("attached", 120), ("brief", 1))
    )  # fmt: skip
    late.take("r")
    wait_until(lambda: trust(server, late) < TTL * 2 / 3 and brief.expired(conn))
    told = late.deadline
    assert in_time.heartbeat().alive
    server.restart()
    assert lag(server, late, in_time) > TTL / 3
    assert time.monotonic() + trust(server, late) > told - 0.002, "never less than it was told"
    with server.connect() as conn:
        for session in (late, in_time, attached):
            session.conn = conn
            assert session.heartbeat().alive
        assert late.renew("r").held
        assert brief.expired(conn), "what has expired stays expired"


def test_a_stop_that_takes_longer_than_the_ttl(server, conn, background, tmp_path):
    """From the beginning of the stop no client can heartbeat; the stop waits for the WAL receiver."""
    session = Session(conn, "consumer", ttl="4 s")
    tool = Path(os.environ["PG_BIN"]) / "pg_receivewal"
    receiver = subprocess.Popen([tool, "-d", server.dsn(), "-D", tmp_path, "--no-loop", "--no-sync"], stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: server.query("SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'") == [(1,)])
        receiver.send_signal(signal.SIGSTOP)
        assert session.heartbeat().alive
        stopped = background(server.stop)
        wait_until(lambda: time.monotonic() > session.deadline + 1)
        assert not stopped.done()
    finally:
        receiver.send_signal(signal.SIGCONT)
    stopped.result()
    receiver.wait()
    server.restart()
    assert trust(server, session) > 0


def test_the_dead_stay_dead_without_the_worker(server, conn, no_worker):
    """No process has taken anything from the leader, or looked at it."""
    leader = Session(conn, "leader", ttl="2 s")
    leader.take("r")
    time.sleep(2)
    server.restart()
    with server.connect() as conn:
        assert leader.expired(conn)
        leader.conn = conn
        assert not leader.heartbeat().alive
        assert Session(conn, "next", ttl="120 s").acquire("r").granted


@pytest.mark.parametrize("how", ["immediate", "crash"])
def test_after_a_crash_the_ttl_is_whole(server, conn, how):
    silent, fresh = one_silent(server, conn)
    server.restart()
    assert lag(server, silent, fresh) > RUNS / 2, "it is less before the crash"
    if how == "crash":
        server.crash()
    else:
        server.stop("immediate")
        assert not file_of(server).exists()
        server.restart()
    assert abs(lag(server, silent, fresh)) < WHOLE


def cut(server, file):
    os.truncate(file, file.stat().st_size - 8)


def of_another_stop(server, file):
    """Puts back the file of the stop before, with a start in between."""
    kept = file.read_bytes()
    server.restart()
    server.stop()
    file.write_bytes(kept)


def copied(server, file):
    copy = file.with_suffix(".copy")
    shutil.copy2(file, copy)
    os.replace(copy, file)


def as_standby(server, file):
    (server.data / "standby.signal").touch()


@pytest.mark.parametrize(
    ("damage", "why"),
    [(cut, "damaged"), (of_another_stop, "another stop"), (copied, "a copy"), (as_standby, "this history")],
)
def test_a_file_that_does_not_count(server, conn, damage, why):
    silent, fresh = one_silent(server, conn)
    server.stop()
    said = len(server.logged(IGNORED))
    file = file_of(server)
    damage(server, file)
    shutil.chown(file, file.parent.stat().st_uid, file.parent.stat().st_gid)
    server.restart()
    if damage is as_standby:
        server.query("SELECT pg_promote()")
    (line,) = server.logged(IGNORED)[said:]
    assert why in line and "whole TTL" in line
    assert abs(lag(server, silent, fresh)) < WHOLE
    assert not file.exists()


def test_a_base_backup_with_such_a_file(server, conn):
    """Such a file exists only between a stop and a start; here it is put back by hand."""
    silent, fresh = one_silent(server, conn)
    server.stop()
    kept = file_of(server).read_bytes()
    server.restart()
    assert lag(server, silent, fresh) > RUNS / 2
    file_of(server).write_bytes(kept)
    shutil.chown(file_of(server), server.data.stat().st_uid, server.data.stat().st_gid)
    backup = standby_of(server, "e2e-in-a-row-backup", signal=False)
    try:
        assert backup.logged(IGNORED)
        assert abs(lag(backup, silent, fresh)) < WHOLE
        assert not file_of(backup).exists()
    finally:
        backup.stop("immediate")
    file_of(server).unlink()


def test_a_prepared_end(server, conn):
    """Nothing extends a session whose end is prepared, not even an orderly restart."""
    session = Session(conn, "consumer", ttl="120 s")
    server.restart()
    run_on(server)
    with server.connect() as conn:
        session.conn = conn
        conn.execute("BEGIN")
        assert call(conn, "session_close", session.id)
        conn.execute("PREPARE TRANSACTION 'ends'")
        before = session.heartbeat()
    server.restart()
    with server.connect() as conn:
        session.conn = conn
        after = session.heartbeat()
        assert (after.alive, after.reason) == (True, "closing")
        assert after.trust_ms <= before.trust_ms
        conn.execute("ROLLBACK PREPARED 'ends'")
        wait_until(lambda: call(conn, "session_sweep") and session.heartbeat().reason == "alive")
