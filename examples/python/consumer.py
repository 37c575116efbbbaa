"""A competing consumer with psycopg 3: applies the events of its partitions. ../README.md explains it."""

import contextlib
import os

import psycopg
from eskit_lease.sync import Closed, Leases
from psycopg.rows import namedtuple_row

DATABASE_URL = os.environ["DATABASE_URL"]
CONSUMER = os.environ.get("CONSUMER", f"python-{os.uname().nodename}-{os.getpid()}")
TTL = int(os.environ.get("TTL", "10"))
# No named prepared statements: they may not work through PgBouncer in transaction mode.
SETTINGS = {"autocommit": True, "connect_timeout": TTL, "prepare_threshold": None, "row_factory": namedtuple_row}

READ = """SELECT position, account, cents FROM events
          WHERE partition = %s AND position > %s AND position < eskit_lease.position_horizon()
          ORDER BY position LIMIT 50"""
APPLY = "INSERT INTO ledger (position, account, cents, consumer) VALUES (%s, %s, %s, %s)"


class Connection(psycopg.Connection):
    def wait(self, gen, interval=0.1, timeout=TTL):  # bounds the wait for each answer, which has no limit by default
        try:
            return super().wait(gen, interval, timeout)
        except psycopg.OperationalError as error:
            if error.sqlstate is None:  # no error of the server: the connection is lost
                self.close()
            raise


def apply_batch(db, partition):
    """Applies the next events and moves the position, in one fenced transaction. Returns the events."""
    with partition.transaction(db):
        done = partition.position(db)
        batch = db.execute(READ, (partition.partition, done)).fetchall()
        if batch and partition.commit(db, batch[-1].position, expected=done):
            for event in batch:
                db.execute(APPLY, (*event, CONSUMER))
    return batch


def work(partition):
    with Connection.connect(DATABASE_URL, **SETTINGS) as db:
        while not partition.draining:
            if not apply_batch(db, partition):
                partition.news()


with Leases(DATABASE_URL, name=CONSUMER, takeover=True, ttl=TTL, watch="events") as leases:
    leases.drain_on_signals(TTL)
    with contextlib.suppress(Closed):  # a signal came before it could join
        leases.join(os.environ.get("CONSUMER_GROUP", "ledger"), work)
