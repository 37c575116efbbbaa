"""A competing consumer with psycopg 3: applies the events of its partitions. ../README.md explains it."""

import asyncio
import contextlib
import os

import psycopg
from eskit_lease import Closed, Leases
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


async def apply_batch(db, partition):
    """Applies the next events and moves the position, in one fenced transaction. Returns the events."""
    async with partition.transaction(db):
        done = await partition.position(db)
        batch = await (await db.execute(READ, (partition.partition, done))).fetchall()
        if batch and await partition.commit(db, batch[-1].position, expected=done):
            await db.cursor().executemany(APPLY, [(*event, CONSUMER) for event in batch])
    return batch


async def work(partition):
    async with await psycopg.AsyncConnection.connect(DATABASE_URL, **SETTINGS) as db:
        while not partition.draining:
            if not await asyncio.wait_for(apply_batch(db, partition), TTL):  # a network may be cut off without notice
                await partition.news()


async def main():
    leases = Leases(DATABASE_URL, name=CONSUMER, takeover=True, ttl=TTL, watch="events")
    leases.drain_on_signals(TTL)
    with contextlib.suppress(Closed):  # a signal came before it could join
        async with leases:
            await leases.join(os.environ.get("CONSUMER_GROUP", "ledger"), work)


asyncio.run(main())
