"""The library's face: the settings of a keeper, and the verbs on it."""

import asyncio
import contextlib
import os
import random
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import psycopg
from psycopg import conninfo

from ._drivers import AsyncDriver, Driver, connected
from ._group import Member, Partition
from ._keeper import Keeper, monotonic_ms
from ._lead import Lead, Leading
from ._line import Connect
from ._once import Execution, Outcome, Run
from ._scope import interrupted_by
from ._verb import Work
from ._work import Handler, Item, Worker

DRAIN = 10.0  # seconds
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Face:
    """What the faces with asyncio and without have in common: the settings of a keeper, and what it tells of itself.

    Attributes:
        name: the consumer's name.
    """

    _driver: Driver

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
        """Opens nothing yet.

        Args:
            connection: a connection string of libpq; what it leaves out comes from the PG* variables. Or a function
                that makes a `psycopg.AsyncConnection` when awaited, for instance for passwords that expire.
            name: the consumer's name. By default the host, the process id and a random part.
            ttl: seconds for which the session lives without a heartbeat.
            takeover: inherit from the session of this name that a former process has left. Needs a name that no two
                processes have at a time.
            patience: seconds for which opening tries.
            watch: the name of a table of events, numbered by `eskit_lease.position_next()`. New events are news to all
                scopes.
            on_state: called with the state whenever it changes: trusted, doubting, lost, draining, closed.
        """
        if takeover and name is None:
            raise ValueError("takeover needs a name, which no other process has")
        if not ttl > 0:
            raise ValueError("ttl must be positive")
        connect = connector(connection, ttl) if isinstance(connection, str) else connection
        self.name = name or f"{socket.gethostname()[:200]}-{os.getpid()}-{random.SystemRandom().getrandbits(32):08x}"
        self._signals: dict[int, Any] = {}  # that drain, and what they did before
        self._keeper = Keeper(connect, self.name, ttl, takeover, patience, watch, on_state, self._driver)

    @property
    def state(self) -> str:
        """starting, trusted, doubting, lost, draining or closed."""
        return self._keeper.core.state(monotonic_ms())

    @property
    def session(self) -> str | None:
        """The uuid of the session, for SQL of your own; None if there is none. Keep it private."""
        return self._keeper.core.session


def connector(dsn: str, ttl: float) -> Connect:
    """Returns a function that connects by a connection string.

    A silent host must leave time for the next one of the string, so each has a share of half of the TTL, unless the
    string says otherwise.
    """
    given = conninfo.conninfo_to_dict(dsn)
    hosts = str(given.get("host") or given.get("hostaddr") or os.environ.get("PGHOST", "")).split(",")
    share = os.environ.get("PGCONNECT_TIMEOUT", max(2, int(ttl / 2 / len(hosts))))
    options: dict[str, Any] = {"fallback_application_name": "eskit_lease", "connect_timeout": share} | given
    return lambda: psycopg.AsyncConnection.connect(**options)


class Leases(Face):
    """The leases of this process: one session, kept alive by a connection that nothing else uses.

        async with Leases(os.environ["DATABASE_URL"]) as leases:
            async with leases.lead("sub:orders") as lead:
                ...

    It belongs to the event loop in which it is opened. An event loop that is blocked for a third of the TTL sends no
    heartbeat.
    """

    _driver = AsyncDriver()

    async def open(self) -> None:
        """Opens the session. `async with` does it, too.

        Raises the error of the last try if there is no session within the patience; RuntimeError if called twice.
        """
        await self._keeper.open()

    async def __aenter__(self) -> "Leases":
        await self.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @contextlib.asynccontextmanager
    async def lead(self, name: str) -> AsyncIterator[Lead]:
        """Waits for leadership of a name, and leads for the length of the block.

        When the lease, or the trust in it, ends, the task of the block is cancelled, and the block raises `Lost`. A
        time limit is `asyncio.timeout` around it. Raises `Closed` once the keeper drains, and the driver's errors.
        """
        async with Leading(self._keeper, name).held() as lead:
            assert lead is not None
            with interrupted_by(lead):
                yield lead

    @contextlib.asynccontextmanager
    async def try_lead(self, name: str) -> AsyncIterator[Lead | None]:
        """As `lead`, but gives None if another process, or another block of this one, leads now, or there is no
        trust."""
        leading = Leading(self._keeper, name, waits=False)
        async with leading.held() if leading.may_lead() else contextlib.nullcontext() as lead:
            with interrupted_by(lead) if lead is not None else contextlib.nullcontext():
                yield lead

    async def join(self, group: str, work: Work[Partition]) -> None:
        """Runs `work` for each partition of a group that this process owns, in a task of its own, until the caller is
        cancelled or the keeper has drained.

        The task is cancelled when the partition moves to another member, or the trust ends. When `work` raises an error
        or returns, its partition is released, and taken up under a new fence: at once after `Refused` and `Unsure`,
        else after 0.1 s, which doubles to 10 s.
        Raises the driver's error if the group cannot be joined, or the group or the right to it is gone; and `Closed`.
        """

        async def run(partition: Partition) -> None:
            with interrupted_by(partition):
                await work(partition)

        await Member(self._keeper, group, run).serve()

    async def work(self, queue: str, handler: Handler, connections: Callable[[], Any], *, concurrency: int = 1) -> None:
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
                async with connected(connections) as tx, item._handled(tx):
                    await handler(item, tx)

        await Worker(self._keeper, queue, perform, concurrency).serve()

    async def once(self, key: str, function: Work[Execution], *, retry_in_doubt: bool = False) -> Outcome:
        """Calls a function once for a run-once key, and keeps its result, which JSON must have; or tells what became of
        the key.

        If the function raises, so does this, and the next call may run it again. If its result is refused, this raises,
        too, but the key is failed, as the function has run. If the function was interrupted, the key is failed or in
        doubt, and stays so until an administrator resolves it; with `retry_in_doubt` the next call runs the function
        again. Raises `Lost`, and `Refused` if the run was over before it was finished.
        """
        run = Run(self._keeper, key, retry_in_doubt)
        async with run.held() as given:
            if isinstance(given, Outcome):
                return given
            with interrupted_by(given):
                run.result = await function(given)
        return Outcome(True, "done", run.result)

    async def drain(self, seconds: float = DRAIN) -> None:
        """Begins nothing new, waits until all scopes have ended, at most so many seconds, and closes. Do not await it
        within a scope."""
        await self._keeper.drain(seconds)

    def drain_on_signals(self, seconds: float = DRAIN, signals: Iterable[int] = SIGNALS) -> None:
        """Has SIGTERM and SIGINT drain. The second one does what it did before. Not on Windows."""
        loop = asyncio.get_running_loop()

        def drain() -> None:
            self._forget_signals()
            self._keeper.spawn(self._keeper.drain(seconds))

        for number in signals:
            loop.add_signal_handler(number, drain)
            self._signals[number] = None

    def _forget_signals(self) -> None:
        while self._signals:
            asyncio.get_running_loop().remove_signal_handler(self._signals.popitem()[0])

    async def close(self) -> None:
        """Cancels all scopes, waits for their work, and closes the session: within the TTL at most. `async with` does
        it, too. Does nothing if it was done."""
        self._forget_signals()
        await self._keeper.drain(0)
