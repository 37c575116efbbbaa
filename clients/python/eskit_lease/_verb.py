"""A verb: what the keeper does for a caller. It asks again with the news of the keeper, until it has what it wants."""

import abc
import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import psycopg

from ._errors import SERVER_STATE, Closed, Lost, describe
from ._keeper import LONGEST_PAUSE, REPEATED, Keeper
from ._line import Broken
from ._scope import Scope

T = TypeVar("T")
S = TypeVar("S", bound=Scope)
Work = Callable[[S], Awaitable[object]]  # of the user, under a scope


class Verb(abc.ABC):
    """A task of the keeper's, which goes on if its caller is cancelled, until what it has taken is given back. Verbs of
    one name follow one another."""

    FINAL: tuple[str, ...] = ()  # errors that end it at any time
    passing: tuple[str, ...] = (*REPEATED, SERVER_STATE)  # errors after which it asks again, also before it was served

    def __init__(self, keeper: Keeper, kind: str, name: str) -> None:
        self.keeper, self.name, self.turn = keeper, name, (kind, name)
        self.is_left = False  # by its caller
        self.is_served = False  # it had what it wants once: the errors of later calls pass
        self._seen = -1  # the news for which it has asked
        self._look_at = math.inf  # when to look again at the latest

    @abc.abstractmethod
    async def look(self, session: str) -> bool:
        """Looks what there is for it. Returns whether that was all."""

    @abc.abstractmethod
    async def end(self) -> None:
        """Gives back what it took."""

    def is_over(self) -> bool:
        """Whether it shall look no more."""
        return self.is_left or self.keeper.draining

    def leave(self) -> None:
        """Called each time that the caller is cancelled, and when it has what it wants no more."""
        self.is_left = True
        self.keeper.poke()

    def look_in(self, seconds: float) -> None:
        """Has it look again after this time at the latest, also if no news comes."""
        self._look_at = min(self._look_at, time.monotonic() + seconds)
        self.keeper.poke()

    async def start(self) -> asyncio.Task[None]:
        """Begins it once no other verb is about its name. Raises `Closed`."""
        await self.keeper.until(lambda: self.keeper.draining or self.turn not in self.keeper.turns)
        self.keeper.require_open()
        return self.keeper.spawn(self._run(), self.turn)

    async def _run(self) -> None:
        """Looks whenever there is news and the session is trusted, until it is over. Raises the driver's error."""

        def is_due() -> bool:
            return self.is_over() or self.keeper.asks > self._seen or time.monotonic() >= self._look_at

        try:
            while True:
                await self.keeper.until(is_due, self._look_at - time.monotonic())
                # An answer that comes just after the trust has run out brings it back without an ask.
                await self.keeper.until(lambda: self.is_over() or self.keeper.is_trusted())
                if self.is_over():
                    return
                self._seen, self._look_at = self.keeper.asks, math.inf
                try:
                    if await self.look(str(self.keeper.core.session)):
                        return
                except (Lost, Closed):
                    pass  # the next session is news
                except psycopg.Error as error:
                    passes = self.is_served or isinstance(error, Broken) or error.sqlstate in self.passing
                    if error.sqlstate in self.FINAL or not passes:
                        raise
                    self.keeper.warn(f"asks again for {self.name}: {describe(error)}")
                    self.look_in(LONGEST_PAUSE)
        finally:
            await self.end()


class Tenure(Verb, Generic[T]):
    """Gives a caller something for a while."""

    given: T
    error: BaseException | None = None  # with which the caller has left

    def is_over(self) -> bool:
        return self.is_left or (self.keeper.draining and not self.is_served)

    def give(self, given: T) -> None:
        self.given, self.is_served = given, True
        self.keeper.poke()

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[T]:
        """Waits for what is given, and leaves it at the end of the block."""
        running = await self.start()
        try:
            await self.keeper.until(lambda: self.is_served or running.done())
            if not self.is_served:
                await running
                self.keeper.require_open()
            yield self.given
        except BaseException as error:
            self.error = error
            raise
        finally:
            self.leave()
            if self.is_served:  # else the caller has stopped waiting
                await asyncio.shield(running)


class Crew(Verb, Generic[S]):
    """Runs work of the user under scopes, which begin with the news of the keeper, and end by themselves."""

    def __init__(self, keeper: Keeper, kind: str, name: str, work: Work[S]) -> None:
        super().__init__(keeper, kind, name)
        self.at_work: dict[Hashable, S] = {}
        self._work = work

    @abc.abstractmethod
    async def give_back(self, scope: S, error: BaseException | None) -> None:
        """Called when the work under a scope has ended."""

    async def serve(self) -> None:
        """Returns when the keeper has drained, or raises the driver's error. A caller that is cancelled waits for the
        end all the same."""
        running = await self.start()
        while not running.done():
            try:
                await asyncio.wait({running})
            except asyncio.CancelledError:
                self.leave()
        if self.is_left:
            raise asyncio.CancelledError
        await running

    def begin(self, key: Hashable, scope: S) -> None:
        self.at_work[key] = scope
        self.keeper.spawn(self._perform(key, scope))

    async def _perform(self, key: Hashable, scope: S) -> None:
        """Runs the work in a task of its own: so a CancelledError that the work itself has raised does not look like
        one for this task."""
        try:
            (result,) = await asyncio.gather(self._work(scope), return_exceptions=True)
            scope._end()
            await self.give_back(scope, result if isinstance(result, BaseException) else None)
        finally:
            del self.at_work[key]
            self.look_in(0)
