"""The keeper's own connections. Each call on them can be given up, whatever the network does."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import psycopg
from psycopg.rows import dict_row

from ._errors import is_answer

T = TypeVar("T")
Connection = psycopg.AsyncConnection[Any]
Connect = Callable[[], Awaitable[Connection]]
Row = dict[str, Any]

IDLE = 10.0  # seconds without a call, after which the second connection is closed
MOMENT = 1.0  # seconds for psycopg to notice that its socket was shut down, or its task cancelled; it does at once
RESET = struct.pack("ii", 1, 0)  # a reset instead of a farewell: what was not sent yet is never sent


class Broken(Exception):
    """The connection is lost, could not be made, or was given up. The last call may have been carried out."""


class Line:
    """A connection in autocommit, without named prepared statements. It does one thing at a time."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._connection: Connection | None = None
        self._task: asyncio.Task[Any] | None = None
        self._is_dropped = False

    async def open(self, limit: float) -> None:
        """Connects. Raises `Broken` after `limit` seconds, or with the error as its cause."""
        await self._bounded(self._open(), limit)

    async def call(self, sql: str, params: tuple[Any, ...], limit: float | None = None) -> list[Row]:
        """Runs a statement and returns its rows.

        Raises the driver's error if the server has answered with one. Raises `Broken` if the connection is lost, or
        after `limit` seconds; the line is of no use then.
        """
        if self._connection is None or self._is_dropped:
            raise Broken("no connection")
        return await self._bounded(self._execute(self._connection, sql, params), limit)

    def has_ended(self) -> bool:
        """Whether an idle connection can be read from: the server has closed it, or says why it is about to."""
        if self._connection is None or self._connection.closed:
            return True
        with contextlib.suppress(OSError, psycopg.Error):
            end = socket.socket(fileno=self._connection.pgconn.socket)
            try:
                end.setblocking(False)  # as libpq's are, whatever `socket.setdefaulttimeout` says
                end.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                return False
            finally:
                end.detach()
        return True

    def drop(self) -> None:
        """Gives up what is under way, and the connection with it, without a word to the server."""
        self._is_dropped = True
        if self._task is None or self._task.done():
            return
        if self._connection is None:
            self._task.cancel()
            return
        with contextlib.suppress(OSError, psycopg.Error):
            # Not closed yet, as the task waits for this file descriptor.
            end = socket.socket(fileno=self._connection.pgconn.socket)
            try:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                end.shutdown(socket.SHUT_RDWR)
            finally:
                end.detach()

    async def close(self) -> None:
        """Closes the connection, and gives up what is under way. Returns once the file descriptor is free."""
        self.drop()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=MOMENT)
        if self._connection is not None:
            await self._connection.close()

    async def _open(self) -> None:
        connection = await self._connect()
        if not isinstance(connection, psycopg.AsyncConnection):
            raise TypeError(f"a psycopg.AsyncConnection is needed, not {type(connection).__name__}")
        if self._is_dropped:  # it comes too late
            await connection.close()
            return
        if not connection.autocommit:
            await connection.set_autocommit(True)
        connection.prepare_threshold = None
        self._connection = connection

    async def _execute(self, connection: Connection, sql: str, params: tuple[Any, ...]) -> list[Row]:
        async with connection.cursor(row_factory=dict_row) as cursor:
            try:
                await cursor.execute(sql, params)
            except UnicodeError as error:  # a parameter that the connection's encoding lacks
                raise psycopg.DataError(str(error)) from error
            return await cursor.fetchall()

    async def _bounded(self, work: Coroutine[Any, Any, T], limit: float | None) -> T:
        """Does something in a task of its own: if it were cancelled, psycopg would ask the server, and wait."""
        self._task = task = asyncio.ensure_future(work)
        task.add_done_callback(lambda _: task.cancelled() or task.exception())  # looked at, as it may be given up
        try:
            await asyncio.wait({task}, timeout=limit)
        except asyncio.CancelledError:  # the event loop ends
            self.drop()
            raise
        if not task.done():
            self.drop()
            await asyncio.wait({task}, timeout=MOMENT)
            raise Broken(f"no answer within {limit:g} s")
        try:
            return task.result()
        except asyncio.CancelledError:
            raise Broken("given up") from None
        except Exception as error:
            is_lost = isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError, OSError))
            if self._connection is None or self._connection.closed or (is_lost and not is_answer(error)):
                raise Broken(str(error)) from error
            raise


class Errands:
    """The keeper's second connection, for all calls but heartbeats and waits. It makes one call at a time, and opens
    with the first."""

    def __init__(self, connect: Connect, limit: float) -> None:
        self._connect, self._limit = connect, limit
        self._turn = asyncio.Lock()
        self._line: Line | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._is_closed = False

    async def call(self, sql: str, params: tuple[Any, ...], require: Callable[[], None]) -> tuple[float, list[Row]]:
        """Runs a statement. Returns when the call was made, by the monotonic clock in seconds, and the rows.

        Raises `Broken` or the driver's error, as `Line.call`; and what `require` raises when the call has its turn.
        """
        async with self._turn:
            require()
            if self._is_closed:
                raise Broken("closed")
            if self._idle is not None:
                self._idle.cancel()
            if self._line is not None and self._line.has_ended():
                await self._hang_up()
            try:
                if self._line is None:
                    self._line = Line(self._connect)
                    await self._line.open(self._limit)
                sent = time.monotonic()
                rows = await self._line.call(sql, params, self._limit)
            except Broken:
                await self._hang_up()
                raise
            self._idle = asyncio.get_running_loop().call_later(IDLE, self._rest)
            return sent, rows

    async def close(self) -> None:
        """Closes the connection for good, and gives up the call that is under way."""
        self._is_closed = True
        if self._idle is not None:
            self._idle.cancel()
        await self._hang_up()

    async def _hang_up(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            await line.close()

    def _rest(self) -> None:
        if not self._turn.locked():
            self._resting = asyncio.ensure_future(self._hang_up())
