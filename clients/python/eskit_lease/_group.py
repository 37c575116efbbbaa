"""Groups: the members share partitions, each with a fence and a cursor of its own."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg

from ._drivers import Statement
from ._errors import SERVER_STATE, Closed, LeaseError, Lost
from ._keeper import LONGEST_PAUSE, Keeper, log
from ._scope import Fenced

JOIN = "SELECT eskit_lease.group_join(%s::text, %s::uuid) AS generation"
LEAVE = "SELECT eskit_lease.group_leave(%s::text, %s::uuid) AS done"
ASSIGNMENT = "SELECT partition, fence, state, revoke_in FROM eskit_lease.group_assignment(%s::text, %s::uuid)"
RELEASE = "SELECT eskit_lease.group_release(%s::text, %s::int, %s::bigint) AS done"
POSITION = Statement("SELECT eskit_lease.cursor_position(CAST(%s AS text), CAST(%s AS int))", reads=True)
COMMIT = Statement(
    """SELECT eskit_lease.cursor_commit(CAST(%s AS text), CAST(%s AS int), CAST(%s AS bigint), CAST(%s AS bigint),
                                        expected => CAST(%s AS bigint))"""
)

FIRST_PAUSE_AFTER, LONGEST_PAUSE_AFTER = 0.1, 10.0  # seconds, after work that failed or returned


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


class Member:
    """This process in a group: a task for each partition that it owns."""

    def __init__(self, keeper: Keeper, group: str, work: Callable[[Partition], Awaitable[object]]) -> None:
        self._keeper, self._group, self._work = keeper, group, work
        self._running: dict[int, Partition] = {}
        self._pauses: dict[int, float] = {}  # before the next try of a partition whose work failed
        self._ends = 0  # of the work on partitions
        self._joined: str | None = None  # the session that has joined
        self._was_joined = False
        self._stopping = False

    def stop(self) -> None:
        self._stopping = True

    async def run(self) -> None:
        """Works until `stop`, or the end of a drain. Raises the driver's error if the first join is refused."""
        keeper = self._keeper
        try:
            while not (self._stopping or keeper.draining):
                asks, ends = keeper.asks, self._ends
                pause = await self._look()
                await keeper.until(
                    lambda: self._stopping or keeper.asks > asks or self._ends > ends,  # noqa: B023
                    pause,
                )
            if keeper.draining:  # each is told, and the end of the drain cancels the rest
                await keeper.until(lambda: self._stopping or not self._running)
        finally:
            for partition in self._running.values():
                partition.cancel("the process leaves the group")
            await keeper.until(lambda: not self._running)
            if self._joined is not None and not keeper.draining:
                await self._call(self._joined, LEAVE, self._group, self._joined)

    async def _look(self) -> float | None:
        """Joins with the present session and takes up what it owns. Returns after which time to look again at the
        latest; None if the next news will tell."""
        keeper, session = self._keeper, self._keeper.session
        if session is None or not keeper.is_trusted(session):
            return None
        try:
            if self._joined != session:
                await keeper.call(session, JOIN, self._group, session)
                self._joined, self._was_joined = session, True
            rows = await keeper.call(session, ASSIGNMENT, self._group, session)
        except (Lost, Closed):
            return None
        except psycopg.Error as error:
            if not self._was_joined:
                raise
            log.warning("%s: %s: cannot ask for the partitions: %s", keeper.settings.name, self._group, error)
            if error.sqlstate == SERVER_STATE:  # it is no member any more
                self._joined = None
            return LONGEST_PAUSE
        owned = {row["partition"]: row["fence"] for row in rows if row["state"] == "owned"}
        for number, partition in self._running.items():
            if owned.get(number) != partition.fence:
                partition.cancel("the partition moves to another member")
        for number, fence in owned.items():
            partition = Partition(keeper, self._group, number, fence, session)
            if number not in self._running and keeper.begin(partition, session):
                self._running[number] = partition
                keeper.spawn(self._serve(partition))
        return None

    async def _serve(self, partition: Partition) -> None:
        """Runs the work on a partition to its end, and releases the partition."""
        keeper, number = self._keeper, partition.partition
        began, pause = time.monotonic(), 0.0
        try:
            try:
                await self._work(partition)
                pause = self._pause(number, began)
            except LeaseError as error:
                log.debug("%s: %s, partition %d: %s", keeper.settings.name, self._group, number, error)
            except Exception:
                pause = self._pause(number, began)
                log.exception("%s: %s, partition %d failed", keeper.settings.name, self._group, number)
            partition._end()
            over = partition.cancelled
            await keeper.until(lambda: over.is_set() or self._stopping or keeper.draining, pause)
            if not keeper.closing:
                await self._call(partition.session, RELEASE, self._group, number, partition.fence)
        finally:
            keeper.end(partition)
            del self._running[number]
            self._ends += 1
            keeper.poke()

    def _pause(self, number: int, began: float) -> float:
        """Returns how long to wait after work that failed or returned. It doubles with each time in short order."""
        former = self._pauses.get(number, 0.0) if time.monotonic() < began + LONGEST_PAUSE_AFTER else 0.0
        self._pauses[number] = pause = min(max(2 * former, FIRST_PAUSE_AFTER), LONGEST_PAUSE_AFTER)
        return pause

    async def _call(self, session: str, sql: str, *params: object) -> None:
        """Gives something back. There is nothing to give back once the session has ended."""
        try:
            await self._keeper.call(session, sql, *params)
        except (Lost, Closed):
            pass
        except psycopg.Error as error:
            log.warning("%s: %s: cannot release: %s", self._keeper.settings.name, self._group, error)


async def join(keeper: Keeper, group: str, work: Callable[[Partition], Awaitable[object]]) -> None:
    """Is a member of the group until the caller is cancelled, or the keeper has drained."""
    turn = ("group", group)
    await keeper.take_turn(turn)
    member = Member(keeper, group, work)
    running = keeper.spawn(member.run())
    running.add_done_callback(lambda _: keeper.pass_turn(turn))
    await keeper.wait_for(running, member.stop)
