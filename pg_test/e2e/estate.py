"""The estate of an application in a database: one of everything. Tests make it, and check it after a restore or an
upgrade."""

import time

import psycopg
import pytest
from client import Session, call, rows
from conftest import wait_until
from psycopg.types.json import Jsonb

# Facts that must be the same wherever rows survive, sessions or not.
KEPT = (
    "SELECT name, permits, owner FROM eskit_lease.semaphores",
    "SELECT name, kind, owner FROM eskit_lease.declared_names ORDER BY 1",
    "SELECT resource, lock_key, target::text, key, owner_column, until_column, owner FROM eskit_lease.bridges ORDER BY 1",
    "SELECT group_name, partitions, assignor, owner FROM eskit_lease.groups",
    "SELECT partition, position, acked_ahead FROM eskit_lease.group_lag ORDER BY 1",
    "SELECT queue, ordering, max_attempts, owner FROM eskit_lease.queues ORDER BY 1",
    "SELECT id, payload, attempt, run_at FROM eskit_lease.items WHERE queue = 'q' ORDER BY 1",
    "SELECT id, payload, error FROM eskit_lease.dead_items",
    "SELECT key, attempts, result, error FROM eskit_lease.executions ORDER BY 1",
    "SELECT table_name::text, resource, complete FROM eskit_lease.fenced_tables",
    "SELECT what FROM ledger ORDER BY 1",
)
NOBODY = ("sessions", "leases", "waiters", "group_members", "history")


class Estate:
    """The estate of a role of its own, which is no superuser."""

    def __init__(self, server, dbname="postgres", ttl=6):
        self.ttl, self.dbname = ttl, dbname
        server.query("CREATE ROLE app")
        with server.connect(dbname) as conn:
            conn.execute("CREATE EXTENSION eskit_lease")
            conn.execute("SELECT eskit_lease.grant_consumer('app'), eskit_lease.grant_monitor('app')")
            conn.execute("GRANT EXECUTE ON FUNCTION eskit_lease.bridge_create, eskit_lease.bridge_create_row TO app")
            conn.execute("CREATE TABLE ledger (what text); ALTER TABLE ledger OWNER TO app")
            conn.execute("CREATE TABLE leased (key text PRIMARY KEY, owner text, until timestamptz); ALTER TABLE leased OWNER TO app")
            conn.execute("INSERT INTO leased VALUES ('k')")
        with self.connect(server) as conn:
            self.holder, self.lost, self.heir = (Session(conn, name, ttl=f"{ttl} s") for name in ("holder", "lost", "heir"))
            self.fence = self.holder.take("r")
            self.lost.take("of lost")
            self.heir.queue("of lost")
            self.lost.take("taken")
            server.query("SELECT eskit_lease.lease_force_release(resource, fence, 'why') FROM eskit_lease.leases WHERE resource = 'taken'", dbname=dbname)
            self.declare(conn)
            self.work(conn)
            self.greatest = self.lost.take("last")  # of all fences that were ever answered
            self.rows = self.read(conn)

    def connect(self, server, dbname=None):
        return server.connect(dbname or self.dbname, options="-c role=app")

    def declare(self, conn):
        call(conn, "semaphore_create", "s", 3)
        call(conn, "lease_declare", "r"), call(conn, "lease_declare", "of ", True)
        call(conn, "bridge_create", "b", -7)
        call(conn, "bridge_create_row", "b of a row", "leased", "k", "owner", "until")
        call(conn, "group_create", "g", 4, "range")
        call(conn, "queue_create", "q")
        call(conn, "queue_create", "mortal", 1, "1 s", "key")
        assert call(conn, "table_fence", "ledger", "r")

    def work(self, conn):
        self.write(conn, "before")
        assert self.holder.acquire("s").granted
        owned = wait_until(lambda: self.holder.join("g").assignment("g"))
        assert len(owned) == 4
        self.cursor_fence = owned[1].fence
        assert call(conn, "cursor_commit", "g", 1, 17, self.cursor_fence)
        call(conn, "cursor_ack", "g", 2, 3, owned[2].fence)
        call(conn, "item_add_many", "q", [Jsonb(number) for number in range(4)])
        self.item = call(conn, "item_add", "q", Jsonb("later"), None, "2100-01-01")
        first, self.claimed = rows(conn, "item_claim", "q", self.holder.id, 2)
        assert call(conn, "item_done", [first.id], first.fence) == 1
        call(conn, "item_add", "mortal", Jsonb("dead"), "key")
        (dead,) = rows(conn, "item_claim", "mortal", self.holder.id)
        assert call(conn, "item_fail", dead.id, dead.fence, "why") is False
        done = call(conn, "execution_begin", "done", self.holder.id)
        assert call(conn, "execution_finish", "done", done.fence, "42")
        self.attempt = call(conn, "execution_begin", "running", self.holder.id)

    def write(self, conn, what):
        with conn.transaction():
            self.holder.check("r")
            conn.execute("INSERT INTO ledger VALUES (%s)", (what,))

    def read(self, conn):
        return {query: conn.execute(query).fetchall() for query in KEPT}

    def change(self, server):
        """Makes changes after the point in time to which the test goes back."""
        with self.connect(server) as conn:
            for session in (self.holder, self.lost, self.heir):
                session.conn = conn
            self.write(conn, "after")
            assert call(conn, "cursor_commit", "g", 1, 99, self.cursor_fence)
            assert call(conn, "item_done", [self.claimed.id], self.claimed.fence) == 1
            assert call(conn, "execution_finish", "running", self.attempt.fence)
            self.item = call(conn, "item_add", "q", Jsonb("after"))
            for number in range(50):
                self.greatest = self.lost.take(f"unseen {number}")
            assert self.read(conn) != self.rows

    # ---- afterwards ----

    def goes_on(self, server, since, timeline_is_new):
        """Checks the state after a restart: a session that lived keeps what it has, and its full TTL counts from
        `since` at the earliest."""
        with self.connect(server) as conn:
            for session in (self.holder, self.lost, self.heir):
                session.conn = conn
            assert self.heir.heartbeat().alive
            assert self.read(conn) == self.rows
            wait_until(lambda: time.monotonic() > since + self.ttl / 2, pause=0.05)
            assert self.holder.heartbeat().alive and self.heir.heartbeat().alive
            renewed = self.holder.renew("r")
            assert (renewed.held, renewed.reason) == (True, "refence" if timeline_is_new else "held")
            again = self.holder.acquire("r")
            if timeline_is_new:
                assert again.reason == "refenced" and again.fence > self.greatest
                with pytest.raises(psycopg.Error) as stale:
                    call(conn, "fence_check", "r", self.fence)
                assert stale.value.sqlstate == "LF001"
                wait_until(lambda: self.partition_fence() > self.greatest)
            else:
                assert (again.reason, again.fence) == ("already_held", self.fence)
            self.write(conn, "on")
            assert call(conn, "cursor_commit", "g", 1, 18, self.partition_fence())
            assert call(conn, "item_done", [self.claimed.id], self.claimed.fence) == 1
            assert call(conn, "execution_finish", "running", self.attempt.fence)

            def handed_over():
                assert self.holder.heartbeat().alive and self.heir.heartbeat().alive
                return self.heir.holds("of lost")

            wait_until(handed_over, pause=0.02)
            assert time.monotonic() > since + self.ttl
            assert self.heir.fences["of lost"] > self.greatest
            self.check_new(conn, Session(conn, "new"))
            assert self.holder.close() and self.heir.close()

    def partition_fence(self):
        return next((row.fence for row in self.holder.assignment("g") if row.partition == 1), 0)

    def begins_anew(self, server, dbname):
        """Checks the state after a dump and restore: no session lives, and all that belongs to no session exists and
        works at once."""
        with self.connect(server, dbname) as conn:
            for view in NOBODY:
                assert conn.execute(f"SELECT count(*) FROM eskit_lease.{view}").fetchone() == (0,), view
            assert call(conn, "session_heartbeat", self.holder.id).reason == "unknown_session"
            assert self.read(conn) == self.rows
            assert conn.execute("SELECT state FROM eskit_lease.executions ORDER BY key").fetchall() == [("done",), ("in_doubt",)]
            self.holder = new = Session(conn, "new", ttl="60 s")
            assert new.take("r") > self.greatest
            with pytest.raises(psycopg.Error) as refused:
                conn.execute("INSERT INTO ledger VALUES ('unchecked')")
            assert refused.value.sqlstate == "LF002"
            self.write(conn, "new")
            owned = wait_until(lambda: new.join("g").assignment("g"))
            assert call(conn, "cursor_position", "g", 1) == 17 and call(conn, "cursor_commit", "g", 1, 18, owned[1].fence)
            items = rows(conn, "item_claim", "q", new.id, 10)
            assert [item.payload for item in items] == [1, 2, 3]
            assert call(conn, "item_done", [item.id for item in items], items[0].fence) == 3
            again = call(conn, "execution_begin", "done", new.id)
            assert (again.first, again.state, again.result) == (False, "done", 42)
            self.check_new(conn, new)
            assert new.close()

    def check_new(self, conn, session):
        """Checks that new fences and ids are above all that were ever answered."""
        assert session.take("new") > self.greatest
        assert session.acquire("s").fence > self.greatest
        assert call(conn, "execution_begin", "new", session.id).fence > self.greatest
        assert call(conn, "item_add", "q", Jsonb("new")) > self.item
        assert rows(conn, "item_claim", "q", session.id)[0].fence > self.greatest
