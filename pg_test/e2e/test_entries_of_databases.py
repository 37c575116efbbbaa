"""More databases have the extension than there are entries (max_databases): those in use have one."""

import contextlib
import threading
import time

import psycopg
import pytest
from client import Session, call, stat
from conftest import Server, caught_up, cut_off, once, promote, standby_of, wait_until
from exported import measured

pytestmark = once
ENTRIES, NAMES = 4, [f"d{i}" for i in range(12)]
IN_USE = NAMES[-3:]  # the last ones in a visit of all databases


@pytest.fixture(scope="module")
def crowded():
    server = Server("e2e-entries-of-databases", f"eskit_lease.max_databases = {ENTRIES}", "eskit_lease.execution_retention = 3")
    server.query("CREATE DATABASE made")
    server.query("CREATE EXTENSION eskit_lease", dbname="made")
    for name in NAMES:
        server.query(f"CREATE DATABASE {name} TEMPLATE made")
    yield server
    server.stop()


def leaders_of(server):
    """Returns a living leader in each database in use, and its fence."""
    leaders, fences = {}, {}
    for name in IN_USE:
        with server.connect(name) as conn:
            conn.execute("SELECT eskit_lease.session_close(session) FROM eskit_lease.sessions")  # sessions of a former test
            leaders[name] = Session(conn, f"leader of {name}", ttl="60 s")
            fences[name] = leaders[name].take("r")
    return leaders, fences


class Beats(threading.Thread):
    """Heartbeats a leader again and again, each time on a new connection, as soon as the server accepts one."""

    def __init__(self, server, dbname, leader):
        super().__init__()
        self.server, self.dbname, self.leader = server, dbname, leader
        self.over, self.answers, self.refused = threading.Event(), [], []

    def run(self):
        while not self.over.wait(0.005):
            try:
                with self.server.connect(self.dbname) as conn:
                    self.answers.append(call(conn, "session_heartbeat", self.leader.id).alive)
            except psycopg.errors.ConfigurationLimitExceeded as refused:
                self.refused.append(refused)
            except psycopg.Error:  # the server is down
                continue


def test_those_in_use_have_an_entry_after_a_restart(crowded):
    leaders, fences = leaders_of(crowded)
    crowded.restart()
    for _ in range(3):
        for name in IN_USE:
            with crowded.connect(name) as conn:
                leaders[name].conn = conn
                assert leaders[name].heartbeat().alive
                call(conn, "fence_check", "r", fences[name])
        # The other databases take turns, and can be used as before.
        for name in NAMES[:-3]:
            with crowded.connect(name) as conn:
                session = Session(conn, "in turn", ttl="60 s")
                fence = session.take("r")
                session.check("r")
                assert fence > 0 and session.release("r") and session.close()
    for name in IN_USE:
        with crowded.connect(name) as conn:
            assert stat(conn, "sessions_alive") == 1
            assert stat(conn, "databases_in_use") >= len(IN_USE)
            assert stat(conn, "heartbeats") >= 3, "it has had its entry all the time"
            leaders[name].conn = conn
            leaders[name].close()


def counts_all(conn):
    """Returns whether all databases in use are counted, as the others are that have an entry."""
    values = dict(conn.execute("SELECT name, value FROM eskit_lease.stats()").fetchall())
    assert values["databases_in_use"] <= values["databases_taken"], values
    return values["databases_in_use"] >= len(IN_USE)


def test_no_more_databases_are_in_use_than_have_an_entry(crowded):
    """After a restart the databases in use have the entries of visits, and count with the others."""
    leaders, _ = leaders_of(crowded)
    crowded.restart()
    with crowded.connect() as conn:
        conn.execute("CREATE EXTENSION eskit_lease")
        try:
            wait_until(lambda: counts_all(conn))
            wait_until(lambda: counts_all(conn) and not crowded.workers(), pause=0.05)
        finally:
            conn.execute("DROP EXTENSION eskit_lease")
    for name, leader in leaders.items():
        with crowded.connect(name) as leader.conn:
            assert leader.close()


def never_refused(server, leaders, begin):
    """Checks that leaders' heartbeats are never refused, from the first moment on, while the server starts and visits
    all databases."""
    beats = [Beats(server, name, leader) for name, leader in leaders.items()]
    for beat in beats:
        beat.start()
    try:
        begin()
        # Meanwhile a visited database gives up its entry, even if a transaction is open there.
        with contextlib.ExitStack() as bystanders:
            for name in NAMES[:-3]:
                bystanders.enter_context(server.connect(name)).execute("BEGIN; SELECT FROM pg_class")
            wait_until(lambda: server.workers("launcher") and not server.workers(), pause=0.05)
            asked = [len(beat.answers) for beat in beats]
            answered = lambda beat, before: len(beat.answers) > before + 5 or beat.refused
            wait_until(lambda: all(answered(*beat) for beat in zip(beats, asked, strict=True)))
    finally:
        for beat in beats:
            beat.over.set()
        for beat in beats:
            beat.join()
    for beat in beats:
        assert not beat.refused, (beat.dbname, len(beat.refused), beat.refused[0])
        assert beat.answers and all(beat.answers)


def test_a_leader_is_never_refused_while_databases_are_looked_into(crowded):
    leaders, _ = leaders_of(crowded)
    for _ in range(3):
        never_refused(crowded, leaders, crowded.restart)
    standby = standby_of(crowded, "e2e-entries-of-databases-standby")
    try:
        with (standby.data / "postgresql.auto.conf").open("a") as settings:
            settings.write(f"eskit_lease.max_databases = {ENTRIES}\n")
        standby.restart()
        caught_up(crowded, standby)
        cut_off(standby)
        never_refused(standby, leaders, lambda: promote(standby))
    finally:
        standby.stop()
    for name, leader in leaders.items():
        with crowded.connect(name) as leader.conn:
            assert leader.close()


def test_what_is_kept_is_removed_where_an_entry_was_given_up(crowded):
    with crowded.connect("d0") as conn:
        session = Session(conn, "in turn", ttl="60 s")
        before = stat(conn, "since")
        fence = call(conn, "execution_begin", "k", session.id).fence
        call(conn, "execution_finish", "k", fence, "1")
        session.close()
        # A connection outside a transaction keeps no entry.
        for name in NAMES[1:]:
            with crowded.connect(name) as other:
                Session(other, "in turn", ttl="60 s").close()
        wait_until(lambda: stat(conn, "since") is None, timeout=30, pause=0.1)
        wait_until(lambda: conn.execute("SELECT count(*) FROM eskit_lease._executions").fetchone() == (0,), timeout=60, pause=0.1)
        time.sleep(1)
        session = Session(conn, "in turn", ttl="60 s")
        assert stat(conn, "since") > before and stat(conn, "sessions_opened") == 1, "it counts anew"
        session.close()


def test_without_a_worker(crowded):
    """Slots of ended sessions, and entries of databases that are no longer used, are freed without a worker, by calls
    and sweeps."""
    crowded.set(eskit_lease__worker="off")
    try:
        for name in NAMES:
            with crowded.connect(name) as conn:
                before = stat(conn, "slots_of_ended")  # slots of sessions from a former start are kept
                assert call(conn, "lease_release", "r", call(conn, "lock_acquire", "r", "owner", "1 h").fence)
                dying = Session(conn, "dying", ttl="1 s")
                wait_until(lambda: dying.expired(conn))  # noqa: B023
                assert call(conn, "session_sweep").ended >= 1
                assert stat(conn, "slots_of_ended") == before
    finally:
        crowded.set(eskit_lease__worker=None)


def test_all_in_use(crowded):
    conns = [crowded.connect(name) for name in NAMES]
    try:
        sessions = [Session(conn, "one of those", ttl="60 s") for conn in conns[:ENTRIES]]
        assert stat(conns[0], "databases_in_use") == ENTRIES
        # The database that is shut out shows this as well, and the alert fires there.
        for conn in (conns[0], conns[ENTRIES]):
            assert (stat(conn, "databases_taken"), stat(conn, "sessions_alive")) == (ENTRIES, int(conn is conns[0]))
            found = measured(conn)
            assert found["databases_in_use"] > 0.9 * found["max_databases"] and found["databases_taken"] == found["max_databases"]
        with pytest.raises(psycopg.errors.ConfigurationLimitExceeded):
            Session(conns[ENTRIES], "one too many")
        wait_until(lambda: crowded.logged(f"{ENTRIES} of {ENTRIES} entries for databases"), timeout=60, pause=0.2)
        assert all(session.heartbeat().alive for session in sessions)
        # An entry that only an open transaction uses is not given to another database.
        sessions[0].close()
        conns[0].execute("BEGIN")
        call(conns[0], "session_heartbeat", sessions[0].id)
        time.sleep(2)
        with pytest.raises(psycopg.errors.ConfigurationLimitExceeded):
            Session(conns[ENTRIES], "still one too many")
        conns[0].execute("COMMIT")
        assert Session(conns[ENTRIES], "in its entry", ttl="60 s").heartbeat().alive
    finally:
        for conn in conns:
            conn.close()
