"""One connection of the keeper's own. Each call on it can be given up, whatever the network does."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
from psycopg.rows import dict_row

from ._errors import is_answer

Connection = psycopg.AsyncConnection[Any]
Connect = Callable[[], Awaitable[Connection]]
Row = dict[str, Any]

# A reset instead of a farewell: what was not sent yet is never sent.
RESET = struct.pack("ii", 1, 0)
# How long psycopg may take to notice that its socket has been shut down, or its task cancelled. It is at once.
MOMENT = 1.0


class Broken(Exception):
    """The connection is lost, could not be made, or was given up. The last call may have been carried out."""


class Line:
    """A connection in autocommit, without named prepared statements. It makes one call at a time."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._connection: Connection | None = None
        self._call: asyncio.Task[Any] | None = None
        self._dropped = False

    async def open(self, limit: float) -> None:
        """Connects. Raises `Broken` after `limit` seconds, or with the driver's error as its cause."""
        connecting = asyncio.ensure_future(self._made())
        await self._finish(connecting, limit)
        if self._dropped or not connecting.done():
            connecting.add_done_callback(_discard)  # a connection that comes late, or has come in vain
            connecting.cancel()
            await asyncio.wait({connecting}, timeout=MOMENT)
            raise Broken(f"no connection within {limit:g} s")
        try:
            self._connection = connecting.result()
        except asyncio.CancelledError:
            raise Broken("given up") from None
        except Exception as error:
            raise Broken(str(error)) from error

    async def call(self, sql: str, params: tuple[Any, ...], limit: float | None = None) -> list[Row]:
        """Runs a statement and returns its rows.

        Raises `Broken` if the connection is lost, or after `limit` seconds; then the line is dropped. Raises the
        driver's error if the server has answered with one.
        """
        if self._connection is None or self._dropped:
            raise Broken("no connection")
        self._call = call = asyncio.ensure_future(self._execute(self._connection, sql, params))
        await self._finish(call, limit)
        if not call.done():
            self.drop()
            await asyncio.wait({call}, timeout=MOMENT)
            call.add_done_callback(_retrieve)
            raise Broken(f"no answer within {limit:g} s" if limit else "given up")
        try:
            return call.result()
        except (psycopg.Error, OSError) as error:
            if is_answer(error) and not self._connection.closed:
                raise
            raise Broken(str(error)) from error
        except asyncio.CancelledError:
            raise Broken("given up") from None

    def drop(self) -> None:
        """Gives up the call that is under way, and the connection with it, without a word to the server."""
        self._dropped = True
        if self._call is None or self._call.done():
            return
        if self._connection is None:
            self._call.cancel()  # it connects
            return
        with contextlib.suppress(OSError, psycopg.Error):
            # Not closed yet, as the call's task waits for this file descriptor.
            end = socket.socket(fileno=self._connection.pgconn.socket)
            try:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                end.shutdown(socket.SHUT_RDWR)
            finally:
                end.detach()

    async def close(self) -> None:
        """Closes the connection. Returns once its file descriptor is free."""
        if self._call is not None and not self._call.done():
            self.drop()
            await asyncio.wait({self._call}, timeout=MOMENT)
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def _made(self) -> Connection:
        connection = await self._connect()
        if not isinstance(connection, psycopg.AsyncConnection):
            raise TypeError(f"a psycopg.AsyncConnection is needed, not {type(connection).__name__}")
        if not connection.autocommit:
            await connection.set_autocommit(True)
        connection.prepare_threshold = None
        return connection

    async def _execute(self, connection: Connection, sql: str, params: tuple[Any, ...]) -> list[Row]:
        async with connection.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(sql, params)
            return await cursor.fetchall()

    async def _finish(self, task: asyncio.Task[Any], limit: float | None) -> None:
        """Waits for a task. It is one of its own, as psycopg would ask the server to cancel it, and wait for that."""
        self._call = task
        try:
            await asyncio.wait({task}, timeout=limit)
        except asyncio.CancelledError:  # the event loop ends
            self.drop()
            task.add_done_callback(_retrieve)
            raise


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Looks at a task's error, which asyncio would otherwise report as never retrieved."""
    if not task.cancelled():
        task.exception()


def _discard(connecting: asyncio.Task[Connection]) -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().pgconn.finish()
