"""Work items: a transaction for each, which also finishes the item."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import psycopg

from ._drivers import Statement
from ._errors import FENCE_REFUSED, SERVER_STATE, Closed, LeaseError, Lost
from ._keeper import FIRST_PAUSE, LONGEST_PAUSE, REPEATED, Keeper, log
from ._line import Broken
from ._scope import Scope

CLAIM = "SELECT id, key, payload::text, attempt, fence FROM eskit_lease.item_claim(%s::text, %s::uuid, %s::int)"
FAIL = "SELECT eskit_lease.item_fail(%s::bigint, %s::bigint, %s::text) AS done"
UNCLAIM = "SELECT eskit_lease.item_unclaim(%s::bigint[], %s::bigint) AS done"
CLAIMED = "SELECT id, fence FROM eskit_lease.items WHERE queue = %s::text AND session = %s::uuid AND state = 'claimed'"
DONE = Statement("SELECT eskit_lease.item_done(ARRAY[CAST(%s AS bigint)], CAST(%s AS bigint))")

MOST_ITEMS = 1000  # of one claim
NO_PRIVILEGE = "42501"


class Item(Scope):
    """An item that this process has claimed.

    Attributes:
        queue: the queue; `name` is the same.
        id: the item's number, for good.
        key: the item's key, or None.
        payload: the item's payload, as `json.loads` gives it.
        attempt: how often the item was claimed, from 1.
    """

    def __init__(self, keeper: Keeper, queue: str, session: str, row: dict[str, Any]) -> None:
        super().__init__(keeper, queue, row["fence"], session)
        self.queue: str = queue
        self.id: int = row["id"]
        self.key: str | None = row["key"]
        self.payload: Any = json.loads(row["payload"])
        self.attempt: int = row["attempt"]
        self._begun = False  # the handler has been called

    def _done(self) -> tuple[Statement, int, int]:
        return DONE, self.id, self.fence


class Trouble:
    """Something that goes wrong again and again: it is logged once until it changes, and tried after longer pauses."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.is_over()

    def is_over(self) -> None:
        self._told, self._pause = "", FIRST_PAUSE

    def pause(self, error: BaseException) -> float:
        """Returns for how long to pause, in seconds."""
        if str(error) != self._told:
            self._told = str(error)
            log.warning("%s: %s", self._what, error)
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        return pause


class Worker:
    """Claims items of a queue, for as many handlers as are free."""

    def __init__(
        self, keeper: Keeper, queue: str, perform: Callable[[Item], Awaitable[object]], concurrency: int
    ) -> None:
        self._keeper, self._queue, self._perform = keeper, queue, perform
        self._concurrency = concurrency
        self._items: set[Item] = set()
        self._ends = 0  # of handlers
        self._stray_until: float | None = None  # until when to look for items whose claim had no answer
        self._was_answered = False
        self._claims = Trouble(f"{keeper.settings.name}: {queue}: cannot claim")
        self._connections = Trouble(f"{keeper.settings.name}: {queue}: no connection for an item")
        self._stopping = False

    def stop(self) -> None:
        """Gives back what has not begun, and lets the rest finish. Called again, cancels the rest."""
        if self._stopping:
            self._cancel(self._items)
        self._stopping = True

    async def run(self) -> None:
        """Works until `stop`, or the end of a drain. Raises the driver's error if the first claim is refused."""
        keeper = self._keeper
        try:
            while not (self._stopping or keeper.draining):
                asks, ends = keeper.asks, self._ends
                pause = await self._claim()
                await keeper.until(
                    lambda: self._stopping or keeper.asks > asks or self._ends > ends,  # noqa: B023
                    pause,
                )
            self._cancel(item for item in self._items if not item._begun)
            await keeper.until(lambda: not self._items)
        finally:
            self._cancel(self._items)
            await keeper.until(lambda: not self._items)

    def _cancel(self, items: Iterable[Item]) -> None:
        for item in tuple(items):
            item.cancel("the worker stops")

    async def _claim(self) -> float | None:
        """Claims as many items as there are free handlers. Returns after which time to claim again at the latest; None
        if the next news will tell."""
        keeper, session = self._keeper, self._keeper.session
        free = min(self._concurrency - len(self._items), MOST_ITEMS)
        if free == 0 or session is None or not keeper.is_trusted(session):
            return None
        try:
            if self._stray_until is not None:
                await self._give_back_strays(session, self._stray_until)
            rows = await keeper.call(session, CLAIM, self._queue, session, free, repeat=False)
        except (Lost, Closed):
            return None
        except Broken as error:
            self._stray_until = time.monotonic() + 2 * keeper.ttl
            return self._claims.pause(error)
        except psycopg.Error as error:
            # A queue with partitions refuses who is no member yet.
            if not self._was_answered and error.sqlstate not in (*REPEATED, SERVER_STATE):
                raise
            return self._claims.pause(error)
        self._was_answered = True
        self._claims.is_over()
        for row in rows:
            item = Item(keeper, self._queue, session, row)
            self._items.add(item)
            begins = keeper.begin(item, session) and not self._stopping
            keeper.spawn(self._serve(item) if begins else self._give_back(item))
        if len(rows) == free:
            return 0.0
        return None if self._stray_until is None else keeper.ttl / 2

    async def _serve(self, item: Item) -> None:
        """Has an item handled, and gives it back if that fails."""
        error: Exception | None = None
        try:
            await self._perform(item)
        except Exception as raised:
            error = raised
        finally:
            item._end()
            if error is None:
                self._forget(item)
        if error is not None and not item._begun:
            if not item.cancelled.is_set():  # the application has no connection for it
                pause = self._connections.pause(error)
                await self._keeper.until(lambda: self._stopping or self._keeper.draining, pause)
            await self._give_back(item)
            return
        self._connections.is_over()
        if error is not None:
            trace = None if isinstance(error, LeaseError) else error
            log.warning("%s: %s: item %d: %r", self._keeper.settings.name, self._queue, item.id, error, exc_info=trace)
            text = f"{type(error).__name__}: {error}"
            await self._finish(item, FAIL, item.id, item.fence, text)

    async def _give_back(self, item: Item) -> None:
        await self._finish(item, UNCLAIM, [item.id], item.fence)

    async def _finish(self, item: Item, sql: str, *params: object) -> None:
        """Ends an item's claim. There is none any more once the session has ended."""
        try:
            if not self._keeper.closing:
                await self._keeper.call(item.session, sql, *params)
        except (Lost, Closed):
            pass
        except psycopg.Error as error:
            if error.sqlstate != FENCE_REFUSED:  # else it is done after all: the end of its commit was unknown
                log.warning("%s: %s: item %d: %s", self._keeper.settings.name, self._queue, item.id, error)
        finally:
            self._forget(item)

    def _forget(self, item: Item) -> None:
        self._items.discard(item)
        self._ends += 1
        self._keeper.end(item)

    async def _give_back_strays(self, session: str, until: float) -> None:
        """Gives back the items that a claim without an answer has claimed. A call may be late, so this looks again and
        again."""
        keeper, is_last = self._keeper, time.monotonic() > until
        try:
            rows = await keeper.call(session, CLAIMED, self._queue, session)
        except psycopg.Error as error:
            if error.sqlstate != NO_PRIVILEGE:
                raise
            log.warning("%s: %s: a claim had no answer: the session ends", keeper.settings.name, self._queue)
            self._stray_until = None
            await keeper.give_up_session(session)
            raise Lost("the session has ended") from error
        known = {(item.id, item.fence) for item in self._items}
        for row in rows:
            if (row["id"], row["fence"]) not in known:
                await keeper.call(session, UNCLAIM, [row["id"]], row["fence"])
        if is_last:
            self._stray_until = None


async def work(keeper: Keeper, queue: str, perform: Callable[[Item], Awaitable[object]], concurrency: int) -> None:
    """Works until the caller is cancelled, or the keeper has drained."""
    if concurrency < 1:
        raise ValueError("concurrency must be at least 1")
    turn = ("queue", queue)
    await keeper.take_turn(turn)
    worker = Worker(keeper, queue, perform, concurrency)
    running = keeper.spawn(worker.run())
    running.add_done_callback(lambda _: keeper.pass_turn(turn))
    await keeper.wait_for(running, worker.stop)
