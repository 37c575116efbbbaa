"""The keeper's own connections. Each call on them can be given up, whatever the network does."""

import asyncio
import contextlib
import math
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
from psycopg.rows import dict_row

from ._errors import Closed, is_answer

Connection = psycopg.AsyncConnection[Any]
Connect = Callable[[], Awaitable[Connection]]
Row = dict[str, Any]

IDLE = 10.0  # seconds without a call, after which the second connection is closed
RESET = struct.pack("ii", 1, 0)  # a reset instead of a farewell: what was not sent yet is never sent


class Broken(psycopg.OperationalError):
    """The connection is lost, could not be made, or was given up. The last call may have been carried out."""


class Line:
    """A connection in autocommit, without named prepared statements. It makes one call at a time."""

    def __init__(self, make: Connect) -> None:
        self._make = make
        self._connection: Connection | None = None
        self._turn = asyncio.Lock()

    async def connect(self, limit: float) -> None:
        """Connects anew. Raises `Broken` after `limit` seconds, or with the error as its cause."""
        await self.close()  # first, as its file descriptor may be that of the next connection
        making = asyncio.ensure_future(self._make())
        try:
            await asyncio.wait({making}, timeout=limit)
            if not making.done() or making.cancelled():
                raise TimeoutError(f"no connection within {limit:g} s")
            connection = making.result()
            if not isinstance(connection, psycopg.AsyncConnection):
                raise TypeError(f"a psycopg.AsyncConnection is needed, not {type(connection).__name__}")
            await connection.set_autocommit(True)
            connection.prepare_threshold = None
            self._connection = connection
        except Exception as error:
            raise Broken(str(error)) from error
        finally:
            if not making.done():
                making.add_done_callback(_close_late)
                making.cancel()

    async def call(self, sql: str, params: tuple[Any, ...], limit: float = math.inf) -> list[Row]:
        """Runs a statement and returns its rows.

        Raises the driver's error if the server has answered with one. Raises `Broken` if the connection is lost, or
        after `limit` seconds; the connection is of no use then.
        """
        connection = self._connection
        assert connection is not None
        # The task is not cancelled, as psycopg would ask the server then, and wait.
        timer = asyncio.get_running_loop().call_later(limit, self.drop)
        try:
            async with self._turn, connection.cursor(row_factory=dict_row) as cursor:
                await cursor.execute(sql, params)
                return await cursor.fetchall()
        except UnicodeError as error:  # a parameter that the connection's encoding lacks
            raise psycopg.DataError(str(error)) from error
        except (psycopg.Error, OSError) as error:
            is_lost = isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError, OSError))
            if connection.closed or (is_lost and not is_answer(error)):
                await connection.close()
                raise Broken(str(error)) from error
            raise
        finally:
            timer.cancel()

    def is_good(self) -> bool:
        """Whether there is an idle connection, from which nothing can be read: else the server has closed it, or says
        why it is about to."""
        if self._connection is None:
            return False
        with contextlib.suppress(OSError, psycopg.Error), _Borrowed(fileno=self._connection.fileno()) as end:
            end.setblocking(False)  # as libpq's are, whatever `socket.setdefaulttimeout` says
            try:
                end.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                return True
        return False

    def drop(self) -> None:
        """Gives up the call that is under way, and the connection with it, without a word to the server."""
        if self._connection is not None and self._turn.locked():
            with contextlib.suppress(OSError, psycopg.Error), _Borrowed(fileno=self._connection.fileno()) as end:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                end.shutdown(socket.SHUT_RDWR)  # not closed yet, as the call waits for this file descriptor

    async def close(self) -> None:
        """Closes the connection, and gives up what is under way. Returns once the file descriptor is free."""
        self.drop()
        async with self._turn:
            if self._connection is not None:
                await self._connection.close()


class _Borrowed(socket.socket):
    """A connection's own socket. Takes no file descriptor, of which none may be left, and closes none."""

    def close(self) -> None:
        self.detach()


def _close_late(making: asyncio.Future[Connection]) -> None:
    if not making.cancelled() and making.exception() is None:
        making.result().pgconn.finish()


class Errands:
    """The keeper's second connection, for all calls but heartbeats and waits. It makes one call at a time, opens with
    the first, and closes when it is idle."""

    def __init__(self, make: Connect, limit: float) -> None:
        self.ends_at = math.inf  # no call goes on after this
        self._limit = limit  # seconds of a call
        self._turn = asyncio.Lock()
        self._line = Line(make)
        self._idle: asyncio.TimerHandle | None = None

    async def call(self, sql: str, params: tuple[Any, ...]) -> list[Row]:
        """Runs a statement once it has its turn, and returns its rows.

        Raises `Broken` or the driver's error, as `Line.call`; and `Closed` once the calls have ended.
        """
        async with self._turn:
            until = min(time.monotonic() + self._limit, self.ends_at)
            if until <= time.monotonic():
                raise Closed("the keeper is closed")
            if self._idle is not None:
                self._idle.cancel()
            try:
                if not self._line.is_good():
                    await self._line.connect(until - time.monotonic())
                return await self._line.call(sql, params, until - time.monotonic())
            finally:
                self._idle = asyncio.get_running_loop().call_later(IDLE, self._rest)

    async def close(self) -> None:
        async with self._turn:
            await self._line.close()

    def _rest(self) -> None:
        self._resting = asyncio.ensure_future(self.close())
