"""The program of the conformance kit: it does what the lines of its standard input say, and tells what happens.

../../conformance/README.md explains the commands and the events.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import psycopg
from psycopg_pool import AsyncConnectionPool

from eskit_lease import Closed, Execution, Fenced, Item, Lead, Leases, Lost, Partition, Refused, Unsure

GRACE = 10.0  # seconds for what has begun, when the program is told to end
IDLE = 0.05  # seconds between two looks for events
BATCH = 5


def tell(event: str, **what: Any) -> None:
    told = {"event": event, "at": time.monotonic()} | {
        key: value for key, value in what.items() if key != "id" or value
    }
    print(json.dumps(told), flush=True)


def outcome(error: BaseException) -> str:
    for kind, name in ((Lost, "lost"), (Refused, "refused"), (Unsure, "unsure")):
        if isinstance(error, kind):
            return name
    return "error"


class Program:
    leases: Leases
    pool: AsyncConnectionPool[psycopg.AsyncConnection[Any]]

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[None]] = set()
        self.verbs: dict[str, asyncio.Task[None]] = {}
        self.opened = False

    # ---- the keeper ----

    async def open(
        self,
        dsn: str,
        name: str,
        ttl: float,
        work: str | None = None,
        pool: int = 4,
        takeover: bool = False,
        **given: Any,
    ) -> None:
        self.dsn, self.size = dsn, pool
        self.pool = AsyncConnectionPool(
            work or dsn, min_size=0, max_size=pool, kwargs={"autocommit": True, "prepare_threshold": None}, open=False
        )
        await self.pool.open()
        on_state: Callable[[str], None] = lambda state: tell("keeper", state=state)  # noqa: E731
        self.leases = Leases(dsn, name=name, ttl=ttl, takeover=takeover, on_state=on_state)
        self.opened = True
        await self.leases.open()
        tell("opened", session=self.leases.session, **given)

    async def state(self, **given: Any) -> None:
        tell("state", state=self.leases.state, session=self.leases.session, **given)

    async def drain(self, seconds: float = GRACE, **given: Any) -> None:
        await self.leases.drain(seconds)
        tell("drained", **given)

    async def close(self, **given: Any) -> None:
        await self.leases.close()
        tell("closed", **given)

    async def stop(self, id: str) -> None:  # noqa: A002
        if verb := self.verbs.pop(id, None):
            verb.cancel()
            await asyncio.wait({verb})
        tell("stopped", id=id)

    async def hold(self, seconds: float, **given: Any) -> None:
        async with contextlib.AsyncExitStack() as held:
            for _ in range(self.size):
                await held.enter_async_context(self.pool.connection())
            tell("held", **given)
            await asyncio.sleep(seconds)
        tell("free", **given)

    # ---- the verbs ----

    async def lead(self, id: str, name: str, every: float = 0.01) -> None:  # noqa: A002
        # Until it is stopped. A pool that is just making its first connection swallows the cancel.
        while id in self.verbs:
            fence = None
            try:
                async with self.leases.lead(name) as lead, telling(lead, id=id):
                    fence = lead.fence
                    tell("granted", id=id, fence=fence)
                    while not lead.draining and id in self.verbs and await self.write(lead, id):
                        await rest(lead, every)
            except Lost:
                pass
            except Closed:
                return
            except psycopg.Error as error:
                tell("error", id=id, error=str(error))
                await asyncio.sleep(1)
            finally:
                if fence is not None:
                    tell("ended", id=id, fence=fence)

    async def write(self, lead: Lead, id: str) -> bool:  # noqa: A002
        """Makes one transaction. Returns whether the scope may go on."""
        insert = "INSERT INTO kit_writes (consumer, name, fence) VALUES (%s, %s, %s)"
        try:
            async with self.pool.connection() as db:
                tell("begin", id=id, fence=lead.fence)
                async with lead.transaction(db):
                    await db.execute(insert, (self.leases.name, lead.name, lead.fence))
            tell("wrote", id=id, fence=lead.fence)
        except asyncio.CancelledError:
            if lead.cancelled.is_set():
                tell("lost", id=id, fence=lead.fence)
            raise
        except Exception as error:
            tell(outcome(error), id=id, fence=lead.fence, error=str(error))
            await asyncio.sleep(IDLE)
            return not lead.ended  # the library ends the scope, if it must
        return True

    async def join(self, id: str, group: str, every: float = 0.01) -> None:  # noqa: A002
        async def work(partition: Partition) -> None:
            told = {"id": id, "partition": partition.partition, "fence": partition.fence}
            tell("started", **told)
            try:
                async with telling(partition, **told):
                    while not partition.draining:
                        applied = await self.apply(partition, told)
                        await rest(partition, every if applied else IDLE)
            finally:
                tell("ended", **told)

        with contextlib.suppress(Closed):
            await self.leases.join(group, work)

    async def apply(self, partition: Partition, told: dict[str, Any]) -> bool:
        """Applies the next events in one transaction. Returns False if there are none."""
        events = "SELECT position FROM kit_events WHERE part = %s AND position > %s ORDER BY position LIMIT %s"
        insert = "INSERT INTO kit_applied (part, position, fence, consumer) VALUES (%s, %s, %s, %s)"
        number = partition.partition
        try:
            async with self.pool.connection() as db:
                tell("begin", **told)
                async with partition.transaction(db):
                    done = await partition.position(db)
                    rows = await (await db.execute(events, (number, done, BATCH))).fetchall()
                    if not rows or not await partition.commit(db, rows[-1][0], done):
                        return False
                    for (position,) in rows:
                        await db.execute(insert, (number, position, partition.fence, self.leases.name))
            tell("applied", **told)
        except (Lost, Refused, Unsure) as error:
            tell(outcome(error), **told)
            raise
        except Exception as error:
            tell("error", error=str(error), **told)
            return False
        return True

    async def work(self, id: str, queue: str, concurrency: int = 1) -> None:  # noqa: A002
        async def handle(item: Item, db: psycopg.AsyncConnection[Any]) -> None:
            try:
                if item.attempt <= item.payload.get("fail", 0):
                    raise RuntimeError("told to fail")
                await asyncio.sleep(item.payload.get("seconds", 0))
                await db.execute("INSERT INTO kit_done (item, consumer) VALUES (%s, %s)", (item.id, self.leases.name))
            except BaseException:
                tell("failed", id=id, item=item.id)
                raise
            tell("handled", id=id, item=item.id)

        with contextlib.suppress(Closed):
            await self.leases.work(queue, handle, self.pool.connection, concurrency=concurrency)

    async def once(self, id: str, key: str, seconds: float = 0, fail: bool = False) -> None:  # noqa: A002
        async def effect(_: Execution) -> dict[str, str]:
            async with self.pool.connection() as db:
                await db.execute("INSERT INTO kit_once (key, consumer) VALUES (%s, %s)", (key, self.leases.name))
            await asyncio.sleep(seconds)
            if fail:
                raise RuntimeError("told to fail")
            return {"by": self.leases.name}

        try:
            told = await self.leases.once(key, effect)
        except Exception as error:
            tell("once", id=id, first=True, state="failed", result=None, error=repr(error))
        else:
            tell("once", id=id, first=told.first, state=told.state, result=told.result)

    # ---- what no caller should do ----

    async def misuse(self, case: str, **given: Any) -> None:
        error = None
        try:
            await getattr(self, f"misuse_{case}")()
        except Exception as raised:
            error = type(raised).__name__
        tell("misused", case=case, error=error, **given)

    async def misuse_before_open(self) -> None:
        async with Leases(self.dsn).lead("misuse"):
            pass

    async def misuse_after_close(self) -> None:
        async with Leases(self.dsn) as leases:
            pass
        async with leases.lead("misuse"):
            pass

    async def misuse_open_twice(self) -> None:
        async with Leases(self.dsn) as leases:
            await leases.open()

    async def misuse_no_transaction(self) -> None:
        async with self.leases.lead("misuse") as lead, self.pool.connection() as db:
            await lead.guard(db)

    async def misuse_ended_scope(self) -> None:
        async with self.leases.lead("misuse") as lead:
            pass
        async with self.pool.connection() as db, db.transaction():
            await lead.guard(db)

    async def misuse_two_threads(self) -> None:
        async def one(name: str) -> None:
            async with self.leases.lead(name):
                await asyncio.sleep(IDLE)

        await asyncio.gather(one("misuse 1"), one("misuse 2"))

    # ---- the program ----

    def do(self, command: dict[str, Any]) -> None:
        what = command.pop("do")
        task = asyncio.ensure_future(getattr(self, what)(**command))
        self.tasks.add(task)
        task.add_done_callback(self.ended)
        if what in ("lead", "join", "work"):
            self.verbs[command["id"]] = task

    def ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            logging.getLogger("kit").error("a command failed", exc_info=error)

    async def run(self) -> None:
        told = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, told.set)
        reading = asyncio.ensure_future(self.read())
        ending = asyncio.ensure_future(told.wait())
        await asyncio.wait({reading, ending}, return_when=asyncio.FIRST_COMPLETED)
        reading.cancel()
        ending.cancel()
        if self.opened:
            await self.leases.drain(GRACE)
            await self.pool.close(timeout=1)
        for task in self.tasks:
            task.cancel()

    async def read(self) -> None:
        if os.path.samestat(os.fstat(sys.stdin.fileno()), os.stat(os.devnull)):  # which epoll cannot watch
            return
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            self.do(json.loads(line))


async def rest(scope: Fenced, seconds: float) -> None:
    """Sleeps for so long, or until the scope ends or the keeper drains."""
    until = time.monotonic() + seconds
    while not (scope.ended or scope.draining) and (left := until - time.monotonic()) > 0:
        await scope.news(left)


@contextlib.asynccontextmanager
async def telling(scope: Fenced, **told: Any) -> AsyncIterator[None]:
    """Tells when the scope is cancelled."""

    async def tell_cancelled() -> None:
        await scope.cancelled.wait()
        tell("cancelled", **{"fence": scope.fence} | told)

    watcher = asyncio.ensure_future(tell_cancelled())
    try:
        yield
    finally:
        if not scope.cancelled.is_set():
            watcher.cancel()


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    asyncio.run(Program().run())
