"""The work of a verb that goes on: scopes that begin with the news of the keeper, and end by themselves."""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import psycopg

from ._errors import SERVER_STATE, Closed, Lost, describe
from ._keeper import FIRST_PAUSE, LONGEST_PAUSE, REPEATED, Keeper
from ._line import Broken
from ._scope import Scope

S = TypeVar("S", bound=Scope)


class Trouble:
    """Something that goes wrong again and again: it is logged once until it changes, and tried after longer pauses."""

    def __init__(
        self, warn: Callable[..., None], what: str, first: float = FIRST_PAUSE, longest: float = LONGEST_PAUSE
    ) -> None:
        self._warn, self._what, self._first, self._longest = warn, what, first, longest
        self.end()

    def end(self) -> None:
        self._told, self._pause = "", self._first

    def pause(self, error: BaseException) -> float:
        """Returns for how long to pause, in seconds."""
        text = describe(error)
        if text != self._told:
            self._told = text
            self._warn("%s: %s", self._what, text)
        pause, self._pause = self._pause, min(2 * self._pause, self._longest)
        return pause


class Crew(abc.ABC, Generic[S]):
    """Serves until its caller is cancelled, or the keeper has drained."""

    def __init__(self, keeper: Keeper, kind: str, name: str) -> None:
        self.keeper, self.name = keeper, name
        self.at_work: dict[Hashable, S] = {}
        self.is_stopping = False
        self._turn = (kind, name)
        self._ends = 0  # of scopes
        self._was_served = False
        self._trouble = Trouble(keeper.warn, f"cannot ask for {name}")

    async def serve(self) -> None:
        """Raises the driver's error if the server refuses the first call; later ones are repeated."""
        await self.keeper.turn(self._turn)
        running = self.keeper.spawn(self._run(), self._turn)
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            self.stop()
            while not running.done():
                try:
                    await asyncio.wait({running})
                except asyncio.CancelledError:
                    self.stop()
            raise

    def stop(self) -> None:
        """Called each time that the caller is cancelled."""
        self.is_stopping = True
        self.keeper.poke()

    def begin(self, key: Hashable, scope: S) -> bool:
        """Lets a scope begin; `end` must follow."""
        if self.keeper.begin(scope, scope.session):
            self.at_work[key] = scope
        return key in self.at_work

    def end(self, key: Hashable) -> None:
        self._ends += 1
        self.keeper.end(self.at_work.pop(key))

    @abc.abstractmethod
    async def look(self, session: str) -> float | None:
        """Has begin what may. Returns after which time to look again at the latest; None if the next news will tell."""

    @abc.abstractmethod
    def wind_up(self) -> None:
        """Called when nothing may begin any more: cancels what must not go on."""

    @abc.abstractmethod
    async def leave(self) -> None:
        """Called when all has ended."""

    async def _run(self) -> None:
        keeper = self.keeper
        try:
            while not (self.is_stopping or keeper.draining):
                asks, ends = keeper.asks, self._ends
                pause = await self._look()
                await keeper.until(
                    lambda: self.is_stopping or keeper.asks > asks or self._ends > ends,  # noqa: B023
                    pause,
                )
            self.wind_up()
            await keeper.until(lambda: not self.at_work)
        finally:
            for scope in self.at_work.values():
                scope.cancel("the work has stopped")
            await keeper.until(lambda: not self.at_work)
            await self.leave()

    def is_final(self, error: psycopg.Error) -> bool:
        """Whether an error of `look` ends this."""
        # 55000: no member yet, or no longer.
        return not self._was_served and error.sqlstate not in (*REPEATED, SERVER_STATE)

    async def _look(self) -> float | None:
        session = self.keeper.session
        if session is None or not self.keeper.is_trusted(session):
            return None
        try:
            pause = await self.look(session)
        except (Lost, Closed):
            return None
        except (psycopg.Error, Broken) as error:
            if isinstance(error, psycopg.Error) and self.is_final(error):
                raise
            return self._trouble.pause(error)
        self._was_served = True
        self._trouble.end()
        return pause
