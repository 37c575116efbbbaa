"""The keeper's second connection, for all calls but heartbeats and waits."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from ._line import Broken, Connect, Line, Row

IDLE = 10.0  # seconds without a call, after which the connection is closed


class Errands:
    """Makes calls one at a time, on a connection that opens with the first."""

    def __init__(self, connect: Connect, limit: float) -> None:
        self._connect, self._limit = connect, limit
        self._turn = asyncio.Lock()
        self._line: Line | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._resting: asyncio.Future[None] | None = None
        self._closed = False

    async def call(self, sql: str, params: tuple[Any, ...]) -> tuple[float, list[Row]]:
        """Runs a statement. Returns when the call was made, on the monotonic clock in seconds, and the rows.

        Raises `Broken` if the connection cannot be made or breaks, or half of the TTL after the call was made; and the
        driver's error if the server has answered with one.
        """
        async with self._turn:
            if self._idle is not None:
                self._idle.cancel()
            try:
                line = await self._connected()
                sent = time.monotonic()
                rows = await line.call(sql, params, self._limit)
            except Broken:
                await self._hang_up()
                raise
            self._idle = asyncio.get_running_loop().call_later(IDLE, self._rest)
            return sent, rows

    async def close(self) -> None:
        """Closes the connection for good, and gives up the call that is under way."""
        self._closed = True
        if self._idle is not None:
            self._idle.cancel()
        await self._hang_up()

    async def _connected(self) -> Line:
        if self._resting is not None:
            await self._resting
        if self._closed:
            raise Broken("closed")
        if self._line is None:
            self._line = Line(self._connect)
            await self._line.open(self._limit)
        return self._line

    async def _hang_up(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            await line.close()

    def _rest(self) -> None:
        if not self._turn.locked():
            self._resting = asyncio.ensure_future(self._hang_up())
