"""What a caller is given for a while, and what is given back once the caller has left it."""

from __future__ import annotations

import abc
import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

from ._keeper import Keeper

T = TypeVar("T")


class Tenure(abc.ABC, Generic[T]):
    """A task of the keeper's that gets something for a caller. It goes on if the caller is cancelled: until what it has
    got is given back. Two tenures of one name follow one another."""

    def __init__(self, keeper: Keeper, kind: str, name: str) -> None:
        self.keeper, self.name = keeper, name
        self.given: asyncio.Future[T]
        self.is_left = False
        self.error: BaseException | None = None  # with which the caller has left it
        self.turn = (kind, name)

    @abc.abstractmethod
    async def serve(self) -> None:
        """Sets `given`, waits until `is_left`, and gives it back."""

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[T]:
        """Waits for what is given, and leaves it at the end of the block."""
        await self.keeper.turn(self.turn)
        self.given = asyncio.get_running_loop().create_future()
        serving = self.keeper.spawn(self._serve(), self.turn)
        try:
            yield await asyncio.shield(self.given)
        except BaseException as error:
            self.error = error
            raise
        finally:
            self.is_left = True
            self.keeper.poke()
            if self.given.done():  # else the caller has stopped waiting
                await asyncio.shield(serving)

    async def _serve(self) -> None:
        try:
            await self.serve()
        except Exception as error:
            if self.given.done():
                raise
            if not self.is_left:
                self.given.set_exception(error)
