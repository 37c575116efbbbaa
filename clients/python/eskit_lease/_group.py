"""Groups: the members share partitions, each with a fence and a cursor of its own."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg

from ._crew import Crew
from ._drivers import Statement
from ._errors import LeaseError
from ._keeper import NO_OBJECT, Keeper, log
from ._line import Broken
from ._scope import Fenced
from ._waiting import outcome

JOIN = "SELECT eskit_lease.group_join(%s::text, %s::uuid) AS generation"
LEAVE = "SELECT eskit_lease.group_leave(%s::text, %s::uuid) AS done"
ASSIGNMENT = "SELECT partition, fence, state FROM eskit_lease.group_assignment(%s::text, %s::uuid)"
RELEASE = "SELECT eskit_lease.group_release(%s::text, %s::int, %s::bigint) AS done"
POSITION = Statement("SELECT eskit_lease.cursor_position(CAST(%s AS text), CAST(%s AS int))", reads=True)
COMMIT = Statement(
    """SELECT eskit_lease.cursor_commit(CAST(%s AS text), CAST(%s AS int), CAST(%s AS bigint), CAST(%s AS bigint),
                                        expected => CAST(%s AS bigint))"""
)

STAYS = (NO_OBJECT, "42501")  # the group is gone, or the right
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0  # seconds, after work that failed or returned


class Partition(Fenced):
    """A partition that this process owns.

    Attributes:
        group: the group; `name` is the same.
        partition: the number of the partition, from 0.
    """

    def __init__(self, keeper: Keeper, group: str, partition: int, fence: int, session: str) -> None:
        super().__init__(keeper, group, fence, session)
        self.group, self.partition = group, partition

    async def position(self, tx: Any) -> int:
        """Returns the position up to which all is done, 0 at first: read on from there.

        `tx` and the errors are those of `guard`, but that it may be in no transaction.
        """
        return int(await self._fetch(tx, POSITION, *self._position()))

    async def commit(self, tx: Any, position: int, expected: int) -> bool:
        """Moves the position forward in the transaction of `tx`, from `expected`, where the batch began. It checks the
        fence as `guard` does, with the same errors.

        Returns False if the position is already as far: apply nothing.
        """
        return bool(await self._fetch(tx, COMMIT, *self._commit(position, expected)))

    def _position(self) -> tuple[str, int]:
        return self.group, self.partition

    def _commit(self, position: int, expected: int) -> tuple[str, int, int, int, int]:
        return self.group, self.partition, position, self.fence, expected


class Member(Crew[Partition]):
    """This process in a group: a task for each partition that it owns."""

    def __init__(self, keeper: Keeper, group: str, work: Callable[[Partition], Awaitable[object]]) -> None:
        super().__init__(keeper, "group", group)
        self._work = work
        self._asked: str | None = None  # the session that may have joined
        self._joined: str | None = None  # the session that has
        self._is_joining = False
        self._used: dict[int, int] = {}  # the last fence of each partition
        self._pauses: dict[int, float] = {}  # before the next try of a partition whose work failed

    async def look(self, session: str) -> float | None:
        try:
            if self._joined != session:
                self._asked, self._is_joining = session, True
                await self.keeper.call(session, JOIN, self.name, session)
            self._joined, self._is_joining = session, False
            rows = await self.keeper.call(session, ASSIGNMENT, self.name, session, repeat=False)
        except (psycopg.Error, Broken):
            self._joined = None  # to join twice does no harm
            raise
        owned = {row["partition"]: row["fence"] for row in rows if row["state"] == "owned"}
        for partition in self.at_work.values():
            if owned.get(partition.partition) != partition.fence:
                partition.cancel("the partition moves to another member")
        pause = None
        for row in rows:
            number, fence = row["partition"], row["fence"]
            if number in self.at_work:
                continue
            if row["state"] == "owned" and self._used.get(number) != fence:
                partition = Partition(self.keeper, self.name, number, fence, session)
                if self.begin(number, partition):
                    self._used[number] = fence
                    self.keeper.spawn(self._serve(partition))
            elif row["state"] in ("owned", "revoking") and not await self.keeper.give_back(
                session, RELEASE, self.name, number, fence
            ):
                pause = LONGEST_PAUSE
        return pause

    def wind_up(self) -> None:
        if self.is_stopping:  # else the end of the drain cancels those that do not leave by themselves
            for partition in self.at_work.values():
                partition.cancel("the process leaves the group")

    async def leave(self) -> None:
        if self._asked is not None and not self.keeper.draining:
            await self.keeper.give_back(self._asked, LEAVE, self.name, self._asked)

    def is_final(self, error: psycopg.Error) -> bool:
        return error.sqlstate in STAYS or (self._is_joining and super().is_final(error))

    async def _serve(self, partition: Partition) -> None:
        """Runs the work on a partition to its end, and releases the partition."""
        keeper, number = self.keeper, partition.partition
        began, pause = time.monotonic(), 0.0
        try:
            error = await outcome(self._work(partition))
            partition._end()
            if isinstance(error, LeaseError):
                log.debug("%s: %s, partition %d: %s", keeper.name, self.name, number, error)
            else:
                pause = self._pause(number, began)
                if error is not None:
                    keeper.warn("%s, partition %d: the work failed", self.name, number, trace=error)
            await keeper.until(lambda: partition.cancelled.is_set() or self.is_stopping or keeper.draining, pause)
            await keeper.give_back(partition.session, RELEASE, self.name, number, partition.fence)
        finally:
            self.end(number)

    def _pause(self, number: int, began: float) -> float:
        """Returns how long to wait after work that failed or returned. It doubles with each time in short order."""
        former = self._pauses.get(number, 0.0) if time.monotonic() < began + LONGEST_PAUSE else 0.0
        self._pauses[number] = pause = min(max(2 * former, FIRST_PAUSE), LONGEST_PAUSE)
        return pause
