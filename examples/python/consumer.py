"""A competing consumer, with psycopg 3: applies the events of its partitions. ../README.md explains steps (1) to (9)."""

import os
import signal
import sys
import threading
import time

import psycopg
from psycopg.rows import namedtuple_row

GROUP = os.environ.get("CONSUMER_GROUP", "ledger")
CONSUMER = os.environ.get("CONSUMER", f"python-{os.uname().nodename}-{os.getpid()}")
TTL = int(os.environ.get("TTL", "10"))

RELEASE = "SELECT eskit_lease.group_release(%s, partition, fence) FROM eskit_lease.group_assignment(%s, %s)"
OWNED = """SELECT array_agg(partition) AS partitions, array_agg(fence) AS fences
           FROM eskit_lease.group_assignment(%s, %s) WHERE state = 'owned'"""
NEWS = """SELECT mine.* FROM unnest(%s::int[], %s::bigint[]) AS mine (partition, fence), eskit_lease.cursor_position(%s, partition) AS done
          WHERE EXISTS (SELECT FROM events AS e WHERE e.partition = mine.partition AND e.position > done
                        AND e.position < eskit_lease.position_horizon()) ORDER BY random()"""
READ = """SELECT position, account, cents, done FROM eskit_lease.cursor_position(%s, %s) AS done, events
          WHERE partition = %s AND position > done AND position < eskit_lease.position_horizon()
          ORDER BY position LIMIT 50"""
COMMIT = "SELECT eskit_lease.cursor_commit(%s, %s, %s, %s, %s)"
APPLY = "INSERT INTO ledger (position, account, cents, consumer) VALUES (%s, %s, %s, %s)"

stopping = threading.Event()


class Lost(Exception):
    """The session has ended: another session may have what it held."""


class Connection(psycopg.Connection):
    def wait(self, gen, interval=0.1, timeout=TTL):  # bounds the wait for each answer, which has no limit by default
        try:
            return super().wait(gen, interval, timeout)
        except psycopg.OperationalError as error:
            if error.sqlstate is None:  # no error of the server: the connection is lost
                self.close()
            raise


class Session:
    def __init__(self, db):
        self.db = db
        self.id = db.execute("SELECT session FROM eskit_lease.session_open(%s, %s, takeover => true)", (CONSUMER, f"{TTL} s")).fetchone().session  # (1)
        self.heartbeat()

    def ask(self, sql, *params):
        started = time.monotonic()  # (3) from before the call, as the answer may be long on its way
        answer = self.db.execute(sql, params).fetchone()
        if not answer.alive:
            raise Lost(answer.reason)
        self.trusted_until = started + answer.trust_ms / 1000
        self.next_heartbeat = started + answer.trust_ms / 3000
        self.revision = answer.revision
        return answer

    def heartbeat(self):
        # A heartbeat that lets the wait end at new events, too; this is said again, as a restart of the server ends it.
        self.ask("SELECT * FROM eskit_lease.session_watch(%s, 'events')", self.id)

    def wait(self, timeout):
        answer = self.ask("SELECT * FROM eskit_lease.session_wait(%s, %s, %s)", self.id, self.revision, timeout)
        if answer.reason == "wait_limit":  # at once, as too many are waiting: wait here
            time.sleep(answer.retry_ms / 1000)

    def trusted(self):
        return time.monotonic() < self.trusted_until


def consume(db):
    session = Session(db)
    db.execute("SELECT eskit_lease.group_join(%s, %s)", (GROUP, session.id))  # (2)
    owned = asked_at = None
    while not stopping.is_set():
        if asked_at != session.revision:  # (4)
            asked_at = session.revision
            db.execute(RELEASE + " WHERE state = 'revoking'", (GROUP, GROUP, session.id))  # no work on them is in hand
            owned = db.execute(OWNED, (GROUP, session.id)).fetchone()
        news = db.execute(NEWS, (*owned, GROUP)).fetchall()
        for partition, fence in news:
            if stopping.is_set() or asked_at != session.revision or not session.trusted():  # (3)
                break
            if not apply_batch(db, partition, fence):
                asked_at = None
            if time.monotonic() >= session.next_heartbeat:
                session.heartbeat()  # (7)
        session.heartbeat() if news and session.trusted() else session.wait("100 ms" if news else None)
    db.execute("SELECT eskit_lease.session_drain(%s)", (session.id,))  # (8)
    db.execute(RELEASE, (GROUP, GROUP, session.id))
    db.execute("SELECT eskit_lease.session_close(%s)", (session.id,))


def apply_batch(db, partition, fence):
    """(5) Applies the next events of a partition and moves its position, in one fenced transaction. False: refused."""
    try:
        with db.transaction():
            batch = db.execute(READ, (GROUP, partition, partition)).fetchall()
            if batch and db.execute(COMMIT, (GROUP, partition, batch[-1].position, fence, batch[0].done)).fetchone()[0]:
                for event in batch:
                    db.execute(APPLY, (event.position, event.account, event.cents, CONSUMER))
        return True
    except psycopg.Error as error:  # (6)
        if error.sqlstate not in ("LF001", "55P03", "40001"):
            raise
        return False


signal.signal(signal.SIGTERM, lambda *_: stopping.set())
while not stopping.is_set():
    try:
        # Named prepared statements may not work through PgBouncer in transaction mode.
        with Connection.connect(os.environ["DATABASE_URL"], autocommit=True, connect_timeout=TTL, prepare_threshold=None, row_factory=namedtuple_row) as db:
            consume(db)
    except (Lost, psycopg.Error) as error:  # (9)
        print(f"{CONSUMER} begins anew: {error}", file=sys.stderr)
        time.sleep(1)
