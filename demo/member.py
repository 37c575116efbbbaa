"""One member of the group `payments`. Any number of these may run: each gets a share of the partitions.

The loop of docs/consumer.md with an ordinary client. It logs JSON lines.
"""

import argparse
import os
import random
import time

import psycopg
from psycopg.rows import namedtuple_row
from session import Lost, Session, log, stop_on_sigterm, stopping

GROUP = "payments"
BATCH = 20

NEWS = "SELECT partition FROM eskit_lease.group_lag WHERE group_name = %s AND partition = ANY(%s) AND lag > 0 ORDER BY partition"
READ = "SELECT position, account FROM payments WHERE partition = %s AND position > %s ORDER BY position LIMIT %s"
APPLY = """WITH turn AS (UPDATE payment_turns SET turn = turn + 1 WHERE partition = %(partition)s RETURNING turn)
           INSERT INTO payments_applied
           SELECT %(partition)s, position, account, %(fence)s, %(member)s, turn
           FROM turn, unnest(%(positions)s::bigint[], %(accounts)s::text[]) AS p (position, account)"""

options = argparse.ArgumentParser()
options.add_argument("name")
options.add_argument("--ttl", type=float, default=2, help="seconds that the session lives without a heartbeat")
options.add_argument("--attach", action="store_true", help="for direct connections: the session ends with the connection")
options.add_argument("--takeover", action="store_true", help="take the place of the process of this name that ran before")
options.add_argument("--isolation", default="READ_COMMITTED")
options.add_argument("--toil", type=float, default=0, help="seconds, at most, that a batch takes before and after the fence")
options = options.parse_args()
ME = f"{options.name}/{os.getpid()}"


def toil():
    time.sleep(random.uniform(0, options.toil))


class Member:
    def __init__(self, db, session):
        self.db, self.session = db, session
        self.owned = {}  # partition: fence
        self.asked_at = None
        session.watch("payments")
        log("joined", generation=self.ask("group_join(%s, %s)", GROUP, session.id))

    def ask(self, function, *args):
        return self.db.execute(f"SELECT eskit_lease.{function}", args).fetchone()[0]

    def consume(self):
        while not stopping.is_set():
            self.session.must_be_trusted()
            if self.asked_at != self.session.revision:  # something has changed: ask for the assignment
                self.asked_at = self.session.revision
                self.assign()
            if not self.work():
                self.session.wait(self.asked_at)

    def assign(self):
        rows = self.db.execute("SELECT * FROM eskit_lease.group_assignment(%s, %s)", (GROUP, self.session.id)).fetchall()
        fences = {row.partition: row.fence for row in rows}
        news = {partition: fence for partition, fence in fences.items() if self.owned.get(partition) != fence}
        lost = [partition for partition in self.owned if partition not in fences]
        if news or lost:
            log("assigned", gained=news, lost=lost)
        self.owned = fences
        for row in rows:
            if row.state == "revoking":  # all work in hand is committed, so the partition may go
                self.release(row.partition)

    def release(self, partition):
        asked_at = time.time()
        done = self.ask("group_release(%s, %s, %s)", GROUP, partition, self.owned.pop(partition))
        log("released", partition=partition, asked_at=asked_at, done=done)

    def work(self):
        """Applies one batch of each partition with new payments. Returns whether there was any."""
        news = self.db.execute(NEWS, (GROUP, list(self.owned))).fetchall()
        for row in news:
            self.session.must_be_trusted()
            self.project(row.partition)
            if time.monotonic() >= self.session.next_heartbeat:
                self.session.heartbeat()
            if self.asked_at != self.session.revision:  # ask first
                break
        if news:
            self.session.watch("payments")  # a heartbeat; it costs almost nothing, and its revision tells of partitions to release
        return bool(news)

    def project(self, partition):
        """Applies the next payments of a partition and moves its cursor, both or neither, under a fence that is still
        valid."""
        fence = self.owned[partition]
        try:
            with self.db.transaction():
                position = self.ask("cursor_position(%s, %s)", GROUP, partition)
                batch = self.db.execute(READ, (partition, position, BATCH)).fetchall()
                if not batch:
                    return
                log("read", partition=partition, fence=fence, position=position)
                toil()
                if not self.ask("cursor_commit(%s, %s, %s, %s, %s)", GROUP, partition, batch[-1].position, fence, position):
                    raise RuntimeError(f"partition {partition} is beyond {batch[-1].position} already")
                positions, accounts = [event.position for event in batch], [event.account for event in batch]
                witness = {"partition": partition, "fence": fence, "member": ME, "positions": positions, "accounts": accounts}
                self.db.execute(APPLY, witness)
                toil()
            log("applied", partition=partition, fence=fence, positions=[position + 1, batch[-1].position])
        except psycopg.Error as error:
            # Rolled back. LF001: the partition is lost, by a revocation or with the session. 55P03: it is changing
            # hands. 40001: the read was too old. In each case the next assignment says how to go on.
            if error.diag.sqlstate not in ("LF001", "55P03", "40001"):
                raise
            log("refused", partition=partition, fence=fence, sqlstate=error.diag.sqlstate, message=error.diag.message_primary)
            self.asked_at = None

    def finish(self):
        """Takes nothing new from here on. The member's partitions go to the others as soon as the work in hand is
        done."""
        self.ask("session_drain(%s)", self.session.id)
        for partition in list(self.owned):
            self.session.must_be_trusted()
            self.project(partition)
            self.release(partition)
            if time.monotonic() >= self.session.next_heartbeat:
                self.session.heartbeat()
        self.ask("group_leave(%s, %s)", GROUP, self.session.id)
        self.ask("session_close(%s)", self.session.id)
        log("left")


stop_on_sigterm()
takeover = options.takeover
while not stopping.is_set():
    try:
        # Prepared statements may not get through a pooler in transaction mode.
        settings = {"autocommit": True, "row_factory": namedtuple_row, "prepare_threshold": 5 if options.attach else None}
        with psycopg.connect(application_name=ME, **settings) as db:
            db.isolation_level = psycopg.IsolationLevel[options.isolation]
            session = Session(db, options.name, options.ttl, options.attach, takeover)
            takeover = False  # inherit only from the process before; a session lost later is not taken over
            member = Member(db, session)
            member.consume()
            member.finish()
    except Lost as lost:
        log("lost", reason=str(lost))
    except psycopg.Error as error:  # a new session on a new connection goes on from what is committed
        ended = error.diag.sqlstate in ("LF003", "55000")  # 55000 up to 0.2.0
        log("lost" if ended else "failed", sqlstate=error.diag.sqlstate, reason=error.diag.message_primary or str(error))
        time.sleep(0 if ended else 1)  # the server may be restarting
