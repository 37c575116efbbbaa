"""asyncio_main.py lead CONSUMER | write FENCE: the reader's part of asyncio_leader.py."""

import asyncio
import contextlib
import sys

import asyncio_leader
import psycopg


async def work(db):
    await db.execute("INSERT INTO applied (consumer) VALUES (%s)", (sys.argv[2],))
    return False


async def write():
    async with await asyncio_leader.connect() as db:
        await asyncio_leader.fenced(db, int(sys.argv[2]), work)


try:
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(asyncio_leader.run(sys.argv[2], work) if sys.argv[1] == "lead" else write())
except psycopg.Error as error:
    print(error.sqlstate)
