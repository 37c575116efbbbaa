"""Groups: the members share partitions, each with a fence and a cursor of its own."""

import time
from typing import Any

from ._drivers import Statement
from ._errors import LeaseError
from ._keeper import NO_OBJECT, Keeper
from ._scope import Fenced
from ._verb import Crew, Work

JOIN = "SELECT eskit_lease.group_join(%s::text, %s::uuid)"
LEAVE = "SELECT eskit_lease.group_leave(%s::text, %s::uuid)"
ASSIGNMENT = "SELECT partition, fence, state FROM eskit_lease.group_assignment(%s::text, %s::uuid)"
RELEASE = "SELECT eskit_lease.group_release(%s::text, %s::int, %s::bigint)"
POSITION = Statement("SELECT eskit_lease.cursor_position(CAST(%s AS text), CAST(%s AS int))", reads=True)
COMMIT = Statement("""SELECT eskit_lease.cursor_commit(CAST(%s AS text), CAST(%s AS int), CAST(%s AS bigint),
                                                       CAST(%s AS bigint), expected => CAST(%s AS bigint))""")

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
        self._began = time.monotonic()

    async def position(self, tx: Any) -> int:
        """Returns the position up to which all is done, 0 at first: read on from there.

        `tx` and the errors are those of `guard`, but that it may be in no transaction.
        """
        return int(await self._fetch(tx, POSITION, self.group, self.partition))

    async def commit(self, tx: Any, position: int, expected: int) -> bool:
        """Moves the position forward in the transaction of `tx`, from `expected`, where the batch began. It checks the
        fence as `guard` does, with the same errors.

        Returns False if the position is already as far: apply nothing.
        """
        return bool(await self._fetch(tx, COMMIT, self.group, self.partition, position, self.fence, expected))


class Member(Crew[Partition]):
    """This process in a group: a task for each partition that it owns."""

    FINAL = (NO_OBJECT, "42501")  # the group is gone, or the right

    def __init__(self, keeper: Keeper, group: str, work: Work[Partition]) -> None:
        super().__init__(keeper, "group", group, work)
        self._asked: str | None = None  # the session that may have joined
        self._joined: str | None = None  # the session that has
        self._pauses: dict[int, float] = {}  # before the next try of a partition whose work failed

    async def look(self, session: str) -> bool:
        if self._joined != session:
            self._asked = session
            await self.keeper.call(session, JOIN, self.name, session)
            self.is_served = True
        self._joined = None  # unless the call says nothing else: to join twice does no harm
        rows = await self.keeper.call(session, ASSIGNMENT, self.name, session, repeat=False)
        self._joined = session
        owned = {row["partition"]: row["fence"] for row in rows if row["state"] == "owned"}
        for partition in tuple(self.at_work.values()):
            if owned.get(partition.partition) != partition.fence:
                partition.cancel("the partition moves to another member")
        for row in rows:
            number, fence = row["partition"], row["fence"]
            is_used = self.keeper.used.get((self.turn, number)) == fence  # its release was refused
            if number in self.at_work:
                continue
            if row["state"] == "revoking" or is_used:
                if not await self.keeper.give_back(session, RELEASE, self.name, number, fence):
                    self.look_in(LONGEST_PAUSE)
            elif self.keeper.may_begin(session):
                self.keeper.used[self.turn, number] = fence
                self.begin(number, Partition(self.keeper, self.name, number, fence, session))
        return False

    async def end(self) -> None:
        if self.is_left or not self.keeper.draining:  # else its end cancels those that do not leave by themselves
            for partition in self.at_work.values():
                partition.cancel("the process leaves the group")
        await self.keeper.until(lambda: not self.at_work)
        if self._asked is not None and not self.keeper.draining:
            await self.keeper.give_back(self._asked, LEAVE, self.name, self._asked)

    async def give_back(self, partition: Partition, error: BaseException | None) -> None:
        keeper, number = self.keeper, partition.partition
        if not isinstance(error, LeaseError):
            if error is not None:
                keeper.warn(f"{self.name}, partition {number}: the work failed", error)
            # The pause doubles with each time in short order.
            former = self._pauses.get(number, 0.0) if time.monotonic() < partition._began + LONGEST_PAUSE else 0.0
            self._pauses[number] = pause = min(max(2 * former, FIRST_PAUSE), LONGEST_PAUSE)
            await keeper.until(lambda: partition.cancelled.is_set() or self.is_over(), pause)
        await keeper.give_back(partition.session, RELEASE, self.name, number, partition.fence)
