"""The library's face: a keeper, and the verbs on it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any

from ._drivers import connected
from ._group import Partition, join
from ._keeper import Keeper, Settings, connector, default_name
from ._lead import Lead, leading, leading_now
from ._line import Connect
from ._once import Execution, Outcome, once
from ._scope import interrupted_by
from ._work import Item, work

DRAIN = 10.0  # seconds
SIGNALS = (signal.SIGTERM, signal.SIGINT)


def settings_of(
    connection: str | Connect,
    name: str | None,
    ttl: float,
    takeover: bool,
    patience: float,
    watch: str | None,
    on_state: Callable[[str], None] | None,
) -> Settings:
    """Checks the settings of a keeper."""
    if takeover and name is None:
        raise ValueError("takeover needs a name, which no other process has")
    if not ttl > 0:
        raise ValueError("ttl must be positive")
    connect = connector(connection, ttl) if isinstance(connection, str) else connection
    return Settings(connect, name or default_name(), ttl, takeover, patience, watch, on_state)


class Leases:
    """The leases of this process: one session, kept alive by a connection that nothing else uses.

        async with Leases(os.environ["DATABASE_URL"]) as leases:
            async with leases.lead("sub:orders") as lead:
                ...

    It belongs to the event loop in which it is opened. An event loop that is blocked for a third of the TTL sends no
    heartbeat.

    Args:
        connection: a connection string of libpq; what it leaves out comes from the PG* variables. Or a function that
            makes a `psycopg.AsyncConnection` when awaited, for instance for passwords that expire.
        name: the consumer's name. By default the host, the process id and a random part.
        ttl: seconds for which the session lives without a heartbeat.
        takeover: inherit from the session of this name that a former process has left. Needs a name that no two
            processes have at a time.
        patience: seconds for which opening tries.
        watch: the name of a table of events, numbered by `eskit_lease.position_next()`. New events are news to all
            scopes.
        on_state: called with the state whenever it changes: trusted, doubting, lost, draining, closed.
    """

    def __init__(
        self,
        connection: str | Connect = "",
        *,
        name: str | None = None,
        ttl: float = 30.0,
        takeover: bool = False,
        patience: float = 30.0,
        watch: str | None = None,
        on_state: Callable[[str], None] | None = None,
    ) -> None:
        self._keeper = Keeper(settings_of(connection, name, ttl, takeover, patience, watch, on_state))
        self._signals: list[int] = []
        self._drain: asyncio.Future[None] | None = None  # that a signal has begun

    @property
    def name(self) -> str:
        """The consumer's name."""
        return self._keeper.settings.name

    @property
    def state(self) -> str:
        """starting, trusted, doubting, lost, draining or closed."""
        return self._keeper.state

    @property
    def session(self) -> str | None:
        """The uuid of the session, for SQL of your own; None if there is none. Keep it private."""
        return self._keeper.session

    async def open(self) -> None:
        """Opens the session. `async with` does it, too.

        Raises the error of the last try if there is no session within the patience; RuntimeError if called twice.
        """
        await self._keeper.open()

    async def __aenter__(self) -> Leases:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def lead(self, name: str) -> AbstractAsyncContextManager[Lead]:
        """Waits for leadership of a name, and leads for the length of the block.

        When the lease, or the trust in it, ends, the task of the block is cancelled, and the block raises `Lost`. A
        time limit is `asyncio.timeout` around it. Raises `Closed` once the keeper drains, and the driver's errors.
        """
        return leading(self._keeper, name)

    def try_lead(self, name: str) -> AbstractAsyncContextManager[Lead | None]:
        """As `lead`, but gives None if another process leads now, or there is no trust."""
        return leading_now(self._keeper, name)

    async def join(self, group: str, work: Callable[[Partition], Awaitable[object]]) -> None:
        """Runs `work` for each partition of a group that this process owns, in a task of its own, until the caller is
        cancelled or the keeper has drained.

        The task is cancelled when the partition moves to another member, or the trust ends. When `work` raises an error
        or returns, its partition is released, and taken up under a new fence: at once after `Refused` and `Unsure`,
        else after 0.1 s, which doubles to 10 s.
        Raises the driver's error if the group cannot be joined, and `Closed`.
        """

        async def run(partition: Partition) -> None:
            with interrupted_by(partition):
                await work(partition)

        await join(self._keeper, group, run)

    async def work(
        self,
        queue: str,
        handler: Callable[[Item, Any], Awaitable[object]],
        connections: Callable[[], Any],
        *,
        concurrency: int = 1,
    ) -> None:
        """Claims items of a queue and has each handled in a transaction that also finishes it, until the caller is
        cancelled or the keeper has drained.

        A handler that raises has its transaction rolled back, and its item tried again later. A caller that is
        cancelled waits for the handlers that have begun; if it is cancelled again, they are, too.

        Args:
            queue: the queue's name.
            handler: called with the item and a connection, in a transaction.
            connections: gives the application's connections: `pool.connection` of psycopg_pool, `pool.acquire` of
                asyncpg, an `async_sessionmaker` of SQLAlchemy, or a function that connects.
            concurrency: how many handlers run at a time.
        """

        async def perform(item: Item) -> None:
            with interrupted_by(item):
                async with connected(connections) as tx, item._transaction(tx, None, item._done()):
                    item._begun = True
                    await handler(item, tx)

        await work(self._keeper, queue, perform, concurrency)

    async def once(
        self, key: str, function: Callable[[Execution], Awaitable[Any]], *, retry_in_doubt: bool = False
    ) -> Outcome:
        """Calls a function once for a run-once key, and keeps its result, which JSON must have; or tells what became of
        the key.

        If the function raises, so does this, and the next call may run it again. If the function was interrupted, the
        key is failed or in doubt, and stays so until an administrator resolves it; with `retry_in_doubt` the next call
        runs the function again. Raises `Lost`, and `Refused` if the run was over before it was finished.
        """
        return await once(self._keeper, key, function, retry_in_doubt=retry_in_doubt)

    async def drain(self, seconds: float = DRAIN) -> None:
        """Begins nothing new, waits until all scopes have ended, at most so many seconds, and closes. Do not await it
        within a scope."""
        await self._keeper.drain(seconds)

    def drain_on_signals(self, seconds: float = DRAIN, signals: Iterable[int] = SIGNALS) -> None:
        """Has SIGTERM and SIGINT drain. The second one does what it did before. Not on Windows."""
        loop = asyncio.get_running_loop()

        def drain() -> None:
            self._forget_signals()
            self._drain = asyncio.ensure_future(self.drain(seconds))

        for number in signals:
            loop.add_signal_handler(number, drain)
            self._signals.append(number)

    def _forget_signals(self) -> None:
        loop = asyncio.get_running_loop()
        while self._signals:
            loop.remove_signal_handler(self._signals.pop())

    async def close(self) -> None:
        """Cancels all scopes, waits for their work, and closes the session: within the TTL at most. `async with` does
        it, too. Does nothing if it was done."""
        self._forget_signals()
        await self._keeper.close()
