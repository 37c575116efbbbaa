"""Work items: a transaction for each, which also finishes the item."""

import contextlib
import functools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import psycopg

from ._drivers import Statement
from ._errors import Closed, LeaseError, Lost, describe
from ._keeper import LONGEST_PAUSE, Keeper
from ._line import Broken, Row
from ._scope import Scope
from ._verb import Crew, Work

CLAIM = "SELECT id, key, payload::text, attempt, fence FROM eskit_lease.item_claim(%s::text, %s::uuid, %s::int)"
FAIL = "SELECT eskit_lease.item_fail(%s::bigint, %s::bigint, %s::text)"
UNCLAIM = "SELECT eskit_lease.item_unclaim(%s::bigint[], %s::bigint)"
CLAIMED = "SELECT id, fence FROM eskit_lease.items WHERE queue = %s::text AND session = %s::uuid AND state = 'claimed'"
DONE = Statement("SELECT eskit_lease.item_done(ARRAY[CAST(%s AS bigint)], CAST(%s AS bigint))")

MOST_ITEMS = 1000  # of one claim


class Item(Scope):
    """An item that this process has claimed.

    Attributes:
        queue: the queue; `name` is the same.
        id: the item's number, for good.
        key: the item's key, or None.
        attempt: how often the item was claimed, from 1.
    """

    def __init__(self, keeper: Keeper, queue: str, session: str, row: Row) -> None:
        super().__init__(keeper, queue, row["fence"], session)
        self.queue, self._payload = queue, row["payload"]
        self.id: int = row["id"]
        self.key: str | None = row["key"]
        self.attempt: int = row["attempt"]
        self._is_begun = False  # the handler has been called

    @functools.cached_property
    def payload(self) -> Any:
        """The item's payload, as `json.loads` gives it. What that refuses is an error of the handler."""
        return json.loads(self._payload)

    @contextlib.asynccontextmanager
    async def _handled(self, tx: Any) -> AsyncIterator[None]:
        """A block that is the item's transaction, which also finishes it."""
        async with self._transaction(tx, last=(DONE, self.id, self.fence)):
            self._is_begun = True
            yield


Handler = Callable[[Item, Any], Awaitable[object]]  # of the user, in a transaction


class Worker(Crew[Item]):
    """Claims items of a queue, for as many handlers as are free."""

    def __init__(self, keeper: Keeper, queue: str, perform: Work[Item], concurrency: int) -> None:
        super().__init__(keeper, "queue", queue, perform)
        if concurrency < 1:
            raise ValueError("concurrency must be at least 1")
        self._concurrency = concurrency
        self._strays_until = 0.0  # until when to look for items whose claim had no answer

    def leave(self) -> None:
        """Gives back what has not begun, and lets the rest finish. Called again, cancels the rest."""
        self._cancel(all_of_them=self.is_left)
        super().leave()

    def _cancel(self, *, all_of_them: bool) -> None:
        for item in self.at_work.values():
            if all_of_them or not item._is_begun:
                item.cancel("the worker stops")

    async def look(self, session: str) -> bool:
        free = min(self._concurrency - len(self.at_work), MOST_ITEMS)
        if free == 0:
            return False
        await self._give_back_strays(session)
        try:
            rows = await self.keeper.call(session, CLAIM, self.name, session, free, repeat=False)
        except Broken:
            self._strays_until = time.monotonic() + 2 * self.keeper.ttl
            raise
        self.is_served = True
        for row in rows:
            if self.keeper.may_begin(session):
                self.begin((row["id"], row["fence"]), Item(self.keeper, self.name, session, row))
            else:
                self.keeper.spawn(self.keeper.give_back(session, UNCLAIM, [row["id"]], row["fence"]))
        if len(rows) == free:
            self.look_in(0)
        elif time.monotonic() < self._strays_until:
            self.look_in(self.keeper.ttl / 2)
        return False

    async def end(self) -> None:
        self._cancel(all_of_them=False)
        await self.keeper.until(lambda: not self.at_work)
        session = self.keeper.core.session
        if session is not None and not self.keeper.draining:
            try:
                await self._give_back_strays(session)
            except (Lost, Closed, psycopg.Error) as error:
                self.keeper.warn(f"{self.name}: cannot give back what a claim without an answer took: {error}")

    async def give_back(self, item: Item, error: BaseException | None) -> None:
        if error is None:
            return
        if item._is_begun:
            trace = None if isinstance(error, LeaseError) else error
            self.keeper.warn(f"{self.name}: item {item.id}: {describe(error)}", trace)
            # LF001 if it is done after all: the end of its commit was unknown.
            if not (self.keeper.draining and item.cancelled.is_set()):  # else the end of the session gives it back
                await self.keeper.fail(item.session, FAIL, item.id, item.fence, error)
        else:
            if not item.cancelled.is_set():  # the application has no connection for it
                self.keeper.warn(f"no connection for an item of {self.name}: {describe(error)}")
                await self.keeper.until(self.is_over, LONGEST_PAUSE)
            await self.keeper.give_back(item.session, UNCLAIM, [item.id], item.fence)

    async def _give_back_strays(self, session: str) -> None:
        """Gives back the items that a claim without an answer has claimed. A call may be late, so this looks again and
        again."""
        if time.monotonic() >= self._strays_until:
            return
        try:
            rows = await self.keeper.call(session, CLAIMED, self.name, session)
        except psycopg.Error as error:
            if error.sqlstate != "42501":  # without the right to this view
                raise
            rows, self._strays_until = [], 0.0
            self.keeper.replace(session, f"{self.name}: the session ends, as a claim had no answer: {error}")
        for row in rows:
            if (row["id"], row["fence"]) not in self.at_work:
                await self.keeper.give_back(session, UNCLAIM, [row["id"]], row["fence"])
