"""A database in which everything is wrong that an operator may have to look for, so each question has an answer."""

import contextlib
import os

from client import Session, call, rows
from conftest import wait_until
from psycopg.types.json import Jsonb

ROLE = "night_watch"


class Night:
    """The problems, which last while the worker is off."""

    def __init__(self, server, connect):
        self.server, self.connect, self.conn = server, connect, connect()
        self.leader, self.second, self.refused = (Session(self.conn, name, ttl="600 s") for name in ("leader", "second", "refused"))
        self.late, self.dead = None, Session(self.conn, "dead", ttl="2 s")
        self.dead.take("orphaned"), self.second.queue("orphaned")
        assert call(self.conn, "execution_begin", "in doubt", self.dead.id).first
        for _ in range(3):
            for resource in ("flaps", "sub:orders"):
                call(self.conn, "lease_force_release", resource, self.leader.take(resource), "why")
        self.leader.take("sub:orders"), self.leader.take("let go"), self.second.queue("sub:orders")
        self.leader.release("let go")
        self.share(), self.queue()
        self.conn.execute("CREATE TABLE ledger (what text)")
        call(self.conn, "table_fence", "ledger", "sub:orders")
        self.conn.execute("ALTER TABLE ledger DISABLE TRIGGER ALL")
        self.open = connect(autocommit=False)
        self.open.execute("SELECT eskit_lease.fence_check('sub:orders', %s), txid_current()", (self.leader.fences["sub:orders"],))
        wait_until(lambda: self.dead.expired(self.conn))

    def share(self):
        call(self.conn, "group_create", "payments", 4, "sticky", "1 day")
        wait_until(lambda: len(self.leader.join("payments").assignment("payments")) == 4)
        for partition in self.leader.assignment("payments"):
            call(self.conn, "cursor_commit", "payments", partition.partition, 10, partition.fence)
            call(self.conn, "cursor_report_head", "payments", partition.partition, 100)
        self.second.join("payments")
        revoking = "SELECT FROM eskit_lease.group_partitions WHERE state = 'revoking'"
        wait_until(lambda: self.conn.execute(revoking).rowcount)

    def queue(self):
        call(self.conn, "queue_create", "mail", 1)
        call(self.conn, "item_add_many", "mail", [Jsonb(number) for number in range(4)])
        dead, _ = rows(self.conn, "item_claim", "mail", self.leader.id, 2)
        assert not call(self.conn, "item_fail", dead.id, dead.fence, "why")

    def be_late(self):
        """Makes sure that a session has missed a heartbeat, or is about to, and that another has just been refused."""
        assert self.refused.acquire("sub:orders").reason == "held"
        if not self.late or self.late.expired(self.conn):
            self.late = Session(self.conn, "late", ttl="3 s")


@contextlib.contextmanager
def night(server, connect):
    """Gives the night, and a monitor's connection to it."""
    seen = Night(server, connect)
    seen.conn.execute(f"CREATE ROLE {ROLE} LOGIN PASSWORD '{os.environ['PGPASSWORD']}' IN ROLE pg_monitor")
    try:
        call(seen.conn, "grant_monitor", ROLE)
        with server.connect(seen.conn.info.dbname, user=ROLE) as watch:
            yield seen, watch
    finally:
        seen.conn.execute(f"DROP OWNED BY {ROLE}; DROP ROLE {ROLE}")
