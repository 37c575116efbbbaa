"""A streaming standby: refusals while it is one, and its promotion, after which no fence is given twice."""

import os
import re
import subprocess
import time
from pathlib import Path

import psycopg
import pytest
from client import Session, Stubborn, call, rows
from conftest import ROOT, Server, caught_up, cut_off, promote, standby_of, wait_until
from psycopg.types.json import Jsonb


@pytest.fixture
def primary():
    server = Server("e2e-primary", "max_wal_senders = 4", "max_replication_slots = 4", "hot_standby = on")
    server.query("CREATE EXTENSION eskit_lease")
    yield server
    server.stop("immediate")


@pytest.fixture
def standby(primary):
    server = standby_of(primary)
    yield server
    server.stop("immediate")


class Heartbeats(Stubborn):
    """Keeps sessions with a short TTL alive, however slow the machine is between two steps of a test."""

    def __init__(self, server, *sessions):
        super().__init__(server)
        self.sessions = sessions

    def work(self):
        for session in self.sessions:
            assert call(self.conn, "session_heartbeat", session.id).alive
        self.stopping.wait(0.5)


@pytest.fixture
def keep_alive():
    """Gives keep_alive(server, session...): the object that it returns sends heartbeats until its end() is called, or
    the test ends."""
    begun = []

    def begin(*args):
        begun.append(Heartbeats(*args))
        begun[-1].start()
        return begun[-1]

    yield begin
    for heartbeats in begun:
        heartbeats.end()


VERBS = {
    "session_open": ("consumer",), "session_heartbeat": ("{id}",), "session_wait": ("{id}", 0), "session_wait_many": (["00000000-0000-4000-8000-000000000000"], [0]), "session_watch": ("{id}", "pg_class"), "session_drain": ("{id}",),
    "session_detach": ("{id}",), "session_close": ("{id}",), "session_sweep": (), "notify_me": ("1 s",), "lease_acquire": ("r", "{id}"),
    "lease_acquire_many": (["r"], "{id}"), "lease_release_many": (["r"], "{id}"), "lease_renew": ("r", 1),
    "lease_release": ("r", 1), "lease_cancel": ("r", "{id}"), "lease_force_release": ("r", 1, "why"),
    "lease_refence_all": (), "lease_declare": ("n",), "lease_undeclare": ("n",),
    "lock_acquire": ("r", "owner", "5 s"), "fence_check": ("r", 1), "table_fence": ("pg_class", "r"),
    "bridge_create": ("b", 1), "bridge_create_row": ("b", "pg_class", "k", "owner", "until"), "bridge_drop": ("b",), "semaphore_create": ("s", 1), "semaphore_resize": ("s", 1), "semaphore_drop": ("s",), "group_create": ("h", 1),
    "group_alter": ("g",), "group_resize": ("g", 1), "group_drop": ("g",), "group_join": ("g", "{id}"), "group_leave": ("g", "{id}"),
    "group_assignment": ("g", "{id}"), "group_release": ("g", 0, 1), "group_release_many": ("g", [0], [1]), "cursor_commit": ("g", 0, 1, 1), "cursor_ack": ("g", 0, 1, 1),
    "cursor_position": ("g", 0), "cursor_report_head": ("g", 0, 1), "position_next": (), "position_raise": (1,),
    "execution_begin": ("key", "{id}"), "execution_finish": ("key", 1), "execution_fail": ("key", 1, "error"),
    "execution_resolve": ("key", "retry"), "queue_create": ("p",), "queue_alter": ("q",), "queue_drop": ("q",),
    "item_add": ("q", Jsonb(1)), "item_add_many": ("q", [Jsonb(1)]), "item_claim": ("q", "{id}"), "item_done": ([1], 1),
    "item_fail": (1, 1, "error"), "item_unclaim": ([1], 1), "item_requeue": (1,), "next_position": (), "cursor_head": ("g", 0, 1), "fence_table": ("pg_class", "r"),
}  # fmt: skip
NOBODY = "00000000-0000-4000-8000-000000000000"


def check_refusals(server, sqlstate, hint, session=NOBODY):
    with server.connect() as conn:
        for verb, args in VERBS.items():
            with pytest.raises(psycopg.Error) as refused:
                rows(conn, verb, *(str(session) if arg == "{id}" else arg for arg in args))
            assert (verb, refused.value.sqlstate) == (verb, sqlstate)
            assert hint in (refused.value.diag.message_hint or ""), verb
        keys = conn.execute("SELECT eskit_lease.group_lock_key('default'), eskit_lease.advisory_lock_id('')")
        assert keys.fetchone() == (4010717984327297149, -3750763034362895579)


SETTLED = "SELECT what FROM events WHERE position > 0 AND position < eskit_lease.position_horizon() ORDER BY position"


READ = {
    "SELECT DISTINCT state, trust_ms FROM eskit_lease.sessions": [("unknown", None)],
    "SELECT resource, state, consumer FROM eskit_lease.leases WHERE resource <> 'g'": [("lost", "held", "lost"), ("r", "held", "holder")],
    "SELECT resource, state, consumer, holder FROM eskit_lease.waiters": [("lost", "unknown", "waiter", "lost")],
    "SELECT DISTINCT state FROM eskit_lease.group_members": [("unknown",)],
    "SELECT queue, claims, items FROM eskit_lease.queues": [("q", 1, 2)],
    "SELECT state, payload, consumer FROM eskit_lease.items": [("claimed", 1, "holder"), ("ready", 2, None)],
    "SELECT key, state, result FROM eskit_lease.executions": [("begun", "running", None), ("finished", "done", 1)],
}


def read_everything(standby):
    """Checks that all rows can be read, and that no session is shown as dead, since a standby does not know."""
    views = "SELECT table_name FROM information_schema.views WHERE table_schema = 'eskit_lease'"
    for (view,) in standby.query(views):
        standby.query(f"SELECT * FROM eskit_lease.{view}")
    for query, expected in READ.items():
        assert standby.query(f"{query} ORDER BY 1") == expected, query


def exported(server):
    """Returns the names of the exporter's queries that tell something of a server."""
    queries = re.findall(r"^(\w+):\n  query: \|\n((?:    .*\n)+)", (ROOT / "monitoring/queries.yaml").read_text(), re.M)
    return {name for name, query in queries if server.query(query)}


def test_standby_and_its_promotion(primary, standby, keep_alive):
    with primary.connect() as conn:
        holder, lost, waiter = (Session(conn, name, ttl="6 s") for name in ("holder", "lost", "waiter"))
        heartbeats = keep_alive(primary, holder, lost, waiter)
        fence, lost_fence = holder.take("r"), lost.take("lost")
        waiter.queue("lost")
        call(conn, "group_create", "g", 2)
        for member in (holder, lost):
            call(conn, "group_join", "g", member.id)
        revoked = {row.partition: row.fence for row in rows(conn, "group_assignment", "g", holder.id) if row.state == "revoking"}
        ((partition, _),) = revoked.items()
        assert call(conn, "group_release", "g", partition, revoked[partition])
        (kept,) = rows(conn, "group_assignment", "g", holder.id)
        assert call(conn, "cursor_commit", "g", kept.partition, 5, kept.fence)
        call(conn, "queue_create", "q")
        call(conn, "item_add_many", "q", [Jsonb(1), Jsonb(2)])
        assert len(rows(conn, "item_claim", "q", holder.id)) == 1
        finished = call(conn, "execution_begin", "finished", holder.id)
        assert call(conn, "execution_finish", "finished", finished.fence, "1") and call(conn, "execution_begin", "begun", lost.id).first
        conn.execute("CREATE TABLE events (position bigint PRIMARY KEY DEFAULT eskit_lease.position_next(), what text)")
        conn.execute("INSERT INTO events (what) VALUES ('a'), ('b')")
        conn.execute("BEGIN")
        conn.execute("INSERT INTO events (what) VALUES ('open')")
        conn.execute("SAVEPOINT s")
        with primary.connect() as other:
            other.execute("INSERT INTO events (what) VALUES ('after it')")
        caught_up(primary, standby)
        # A standby reads like the primary: rows that come after an open transaction must also wait here.
        wait_until(lambda: standby.query(SETTLED) == [("a",), ("b",)])
        # The horizon does not pass that transaction when positions are raised while it is open.
        with primary.connect() as other:
            assert call(other, "position_raise", 10**13)
            other.execute("INSERT INTO events (what) VALUES ('raised')")
        caught_up(primary, standby)
        assert standby.query(SETTLED) == [("a",), ("b",)]
        conn.execute("COMMIT")
        wait_until(lambda: standby.query(SETTLED) == [("a",), ("b",), ("open",), ("after it",), ("raised",)])
        caught_up(primary, standby)
        check_refusals(standby, "25006", "primary", holder.id)
        read_everything(standby)
        # Metrics that come from rows alone are exported once, however many standbys there are.
        counted = {f"eskit_lease_{what}" for what in ("queue", "group", "executions", "flapping", "leases", "tables")}
        assert exported(primary) >= counted - {"eskit_lease_flapping"}
        assert exported(standby) == exported(primary) - counted
        assert not standby.workers() and not standby.workers("launcher")
        # Further grants never reach the standby, so it is promoted from an older history.
        cut_off(standby)
        unseen = [holder.take(f"unseen {i}") for i in range(50)]
        heartbeats.end()
    primary.stop("immediate")
    promoted_at = time.monotonic()
    promote(standby)
    with standby.connect() as conn:
        for session in (holder, lost, waiter):
            session.conn = conn
        assert holder.heartbeat().alive
        assert waiter.heartbeat().alive
        keep_alive(standby, holder, waiter)
        renewed = holder.renew("r")
        assert (renewed.held, renewed.reason) == (True, "refence")
        again = holder.acquire("r")
        assert (again.granted, again.reason) == (True, "refenced")
        assert again.fence > max(unseen)
        assert holder.renew("r").reason == "held"
        assert holder.acquire("r").reason == "already_held"
        with pytest.raises(psycopg.Error) as stale:
            call(conn, "fence_check", "r", fence)
        assert stale.value.sqlstate == "LF001"
        holder.check("r")
        # The owner of a partition also gets a new fence, as fences above its former one may have been granted.
        wait_until(lambda: rows(conn, "group_assignment", "g", holder.id)[0].fence > max(unseen))
        (again,) = rows(conn, "group_assignment", "g", holder.id)
        assert again.partition == kept.partition and call(conn, "cursor_position", "g", kept.partition) == 5
        assert call(conn, "cursor_commit", "g", kept.partition, 6, again.fence)
        with pytest.raises(psycopg.Error) as stale:
            call(conn, "cursor_commit", "g", kept.partition, 7, kept.fence)
        assert stale.value.sqlstate == "LF001"
        with pytest.raises(psycopg.Error) as unknown:
            call(conn, "fence_check", "unseen 0", unseen[0])
        assert unknown.value.sqlstate == "LF001"
        assert Session(conn, "new").take("unseen 0") > max(unseen)
        # A session that does not come back lives for a TTL after the promotion; then the worker, which runs now, hands
        # over.
        assert Session(conn, "rival").acquire("lost").reason in ("held", "awaited")

        wait_until(lambda: waiter.holds("lost"), pause=0.02)
        assert time.monotonic() - promoted_at > 6
        assert waiter.fences["lost"] > max(unseen) > lost_fence
        wait_until(lambda: [row.state for row in rows(conn, "group_assignment", "g", holder.id)] == ["owned", "owned"])
        conn.execute("INSERT INTO events (what) VALUES ('promoted')")
        wait_until(lambda: [what for (what,) in conn.execute(SETTLED)] == ["a", "b", "open", "after it", "raised", "promoted"])
        assert standby.workers("launcher")


def test_a_restored_base_backup(primary):
    """A holder learns that it needs a new fence, as greater fences may have been granted since the backup."""
    with primary.connect() as conn:
        session = Session(conn, ttl="1 h")
        fences = {resource: session.take(resource) for resource in ("asked", "later")}
        call(conn, "group_create", "g", 1)
        session.join("g")
        wait_until(lambda: session.owns(conn, "g") == 1)
        partition = session.assignment("g")[0].fence
        server = standby_of(primary, "e2e-restored", signal=False)
        since = Session(conn, ttl="1 h").take("since")
    try:
        with server.connect() as conn:
            assert conn.execute("SELECT timeline_id FROM pg_control_checkpoint()").fetchone() == (1,)
            for resource in fences:
                assert call(conn, "lease_renew", resource, fences[resource]).reason == "refence"
            again = call(conn, "lease_acquire", "asked", session.id)
            assert again.reason == "refenced" and again.fence > since > fences["asked"]
            assert call(conn, "lease_renew", "asked", again.fence).reason == "held"
            wait_until(lambda: rows(conn, "group_assignment", "g", session.id)[0].fence > since)
            assert partition < since
        server.restart()
        with server.connect() as conn:
            # A session that has not asked yet learns this even after a further restart, and no session learns it twice.
            assert call(conn, "lease_renew", "later", fences["later"]).reason == "refence"
            assert call(conn, "lease_renew", "asked", again.fence).reason == "held"
            assert call(conn, "lease_acquire", "asked", session.id).reason == "already_held"
            first = call(conn, "lease_refence_all")
            assert call(conn, "lease_renew", "asked", again.fence).reason == "refence"
            newest = call(conn, "lease_acquire", "asked", session.id)
            assert newest.reason == "refenced" and newest.fence > first > again.fence
            assert call(conn, "lease_acquire", "asked", session.id).reason == "already_held"
    finally:
        server.stop("immediate")


@pytest.mark.parametrize("promoted", [False, True])
def test_the_first_grant(primary, promoted):
    """A grant before the worker's first visit of the database counts as one of this history."""
    primary.set(eskit_lease__worker="off")
    server = standby_of(primary, "e2e-restored", signal=promoted)
    try:
        if promoted:
            promote(server)
        with server.connect() as conn:
            session = Session(conn)
            session.take("r")
            assert session.renew("r").reason == "held"
            assert session.acquire("r").reason == "already_held"
    finally:
        server.stop("immediate")


def test_not_preloaded(tmp_path):
    server = Server("e2e-plain", "shared_preload_libraries = ''")
    try:
        server.query("CREATE EXTENSION eskit_lease")
        check_refusals(server, "55000", "shared_preload_libraries")
        with server.connect() as conn:
            for statement in ("SELECT * FROM eskit_lease.stats()", "SELECT * FROM eskit_lease.sessions"):
                try:
                    conn.execute(statement)
                except psycopg.Error as error:
                    assert error.sqlstate == "55000" and "shared_preload_libraries" in error.diag.message_hint
            conn.execute("CREATE TABLE t (name text); CREATE INDEX ON t (eskit_lease.group_lock_key(name))")
            conn.execute("INSERT INTO t VALUES ('default')")
            conn.execute("SELECT setval('eskit_lease.fence_seq', 4711)")
            conn.execute("CREATE TABLE events (position bigint PRIMARY KEY DEFAULT eskit_lease.position_next())")
            conn.execute("INSERT INTO events VALUES (1048576)")  # a position from when the library was preloaded
            assert conn.execute("SELECT position FROM events WHERE position < eskit_lease.position_horizon()").fetchone() == (1048576,)
            conn.execute("CREATE DATABASE restored")
        bin_dir = Path(os.environ["PG_BIN"])
        dump = tmp_path / "dump.sql"
        subprocess.run([bin_dir / "pg_dump", "-d", server.dsn(), "-f", dump], check=True)
        psql = [bin_dir / "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", server.dsn("restored"), "-f", dump]
        subprocess.run(psql, check=True, stdout=subprocess.DEVNULL)
        assert server.query("SELECT last_value FROM eskit_lease.fence_seq", dbname="restored") == [(4711,)]
        assert server.query("SELECT eskit_lease.group_lock_key(name) FROM t", dbname="restored") == [(4010717984327297149,)]
        server.query("DROP EXTENSION eskit_lease CASCADE")
    finally:
        server.stop()
