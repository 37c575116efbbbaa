"""Work items: a transaction for each, which also finishes the item."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg

from ._crew import Crew, Trouble
from ._drivers import Statement
from ._errors import Closed, LeaseError, Lost
from ._keeper import Keeper
from ._line import Broken
from ._scope import Scope
from ._waiting import outcome

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
        attempt: how often the item was claimed, from 1.
    """

    def __init__(self, keeper: Keeper, queue: str, session: str, row: dict[str, Any]) -> None:
        super().__init__(keeper, queue, row["fence"], session)
        self.queue: str = queue
        self.id: int = row["id"]
        self.key: str | None = row["key"]
        self._payload: str = row["payload"]
        self.attempt: int = row["attempt"]
        self.claim = (self.id, self.fence)
        self._is_begun = False  # the handler has been called

    @functools.cached_property
    def payload(self) -> Any:
        """The item's payload, as `json.loads` gives it. What that refuses is an error of the handler."""
        return json.loads(self._payload)

    def _done(self) -> tuple[Statement, int, int]:
        return DONE, self.id, self.fence


class Worker(Crew[Item]):
    """Claims items of a queue, for as many handlers as are free."""

    def __init__(
        self, keeper: Keeper, queue: str, perform: Callable[[Item], Awaitable[object]], concurrency: int
    ) -> None:
        super().__init__(keeper, "queue", queue)
        if concurrency < 1:
            raise ValueError("concurrency must be at least 1")
        self._perform, self._concurrency = perform, concurrency
        self._connections = Trouble(keeper.warn, f"no connection for an item of {queue}")
        self._strays_until: float | None = None  # until when to look for items whose claim had no answer

    def stop(self) -> None:
        """Gives back what has not begun, and lets the rest finish. Called again, cancels the rest."""
        self._cancel(all_of_them=self.is_stopping)
        super().stop()

    def wind_up(self) -> None:
        self._cancel(all_of_them=False)

    async def leave(self) -> None:
        session = self.keeper.session
        if self._strays_until is not None and session is not None and not self.keeper.draining:
            try:
                await self._give_back_strays(session)
            except (Lost, Closed):
                pass
            except psycopg.Error as error:
                self.keeper.warn("%s: cannot give back what a claim without an answer took: %s", self.name, error)

    def _cancel(self, *, all_of_them: bool) -> None:
        for item in tuple(self.at_work.values()):
            if all_of_them or not item._is_begun:
                item.cancel("the worker stops")

    async def look(self, session: str) -> float | None:
        free = min(self._concurrency - len(self.at_work), MOST_ITEMS)
        if free == 0:
            return None
        if self._strays_until is not None:
            await self._give_back_strays(session)
        try:
            rows = await self.keeper.call(session, CLAIM, self.name, session, free, repeat=False)
        except Broken as error:
            self._strays_until = time.monotonic() + 2 * self.keeper.ttl
            return self._trouble.pause(error)
        for row in rows:
            item = Item(self.keeper, self.name, session, row)
            if not self.begin(item.claim, item):
                self.keeper.spawn(self.keeper.give_back(session, UNCLAIM, [item.id], item.fence))
            else:
                self.keeper.spawn(self._serve(item))
        if len(rows) == free:
            return 0.0
        return None if self._strays_until is None else self.keeper.ttl / 2

    async def _serve(self, item: Item) -> None:
        """Has an item handled, and gives it back if that fails."""
        keeper = self.keeper
        try:
            error = await outcome(self._perform(item))
            item._end()
            if error is None:
                self._connections.end()
            elif item._is_begun:
                trace = None if isinstance(error, LeaseError) else error
                keeper.warn("%s: item %d: %r", self.name, item.id, error, trace=trace)
                # LF001 if it is done after all: the end of its commit was unknown.
                if not keeper.closing:  # else the end of the session gives it back
                    await keeper.fail(item.session, FAIL, item.id, item.fence, error)
            else:
                if not item.cancelled.is_set():  # the application has no connection for it
                    pause = self._connections.pause(error)
                    await keeper.until(lambda: self.is_stopping or keeper.draining, pause)
                await keeper.give_back(item.session, UNCLAIM, [item.id], item.fence)
        finally:
            item._end()
            self.end(item.claim)

    async def _give_back_strays(self, session: str) -> None:
        """Gives back the items that a claim without an answer has claimed. A call may be late, so this looks again and
        again."""
        keeper, is_last = self.keeper, time.monotonic() > (self._strays_until or 0)
        try:
            rows = await keeper.call(session, CLAIMED, self.name, session)
        except psycopg.Error as error:
            if error.sqlstate != NO_PRIVILEGE:
                raise
            keeper.warn("%s: the session ends, as a claim had no answer: %s", self.name, error)
            await keeper.give_up_session(session)
            rows, is_last = [], True
        for row in rows:
            if (row["id"], row["fence"]) not in self.at_work:
                await keeper.give_back(session, UNCLAIM, [row["id"]], row["fence"])
        if is_last:
            self._strays_until = None
