"""The application's connections, and their errors: psycopg, asyncpg, SQLAlchemy and Django, each by its own means.

Only psycopg is imported. The others are known by the module of their classes.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

AUTOCOMMIT = (
    "the connection is in no transaction, and in autocommit: begin one, so that the check and the work commit together"
)
NESTED = "the connection is in a transaction, whose commit this cannot see: begin none, or use `guard` in yours"


class Statement:
    """A statement in the notations of all drivers. It is written with %s, as for psycopg and Django, and
    with CAST, as SQLAlchemy takes no :: after a parameter.

    `reads`: it asserts nothing, and may run outside of a transaction.
    """

    def __init__(self, text: str, *, reads: bool = False) -> None:
        self.reads = reads
        first, *rest = text.split("%s")
        self.percent = text
        self.dollar = first + "".join(f"${number}{part}" for number, part in enumerate(rest, 1))
        self.colon = first + "".join(f":p{number}{part}" for number, part in enumerate(rest, 1))


def comes_from(tx: Any, module: str) -> bool:
    """Whether an object's class, or a class that it extends, is from a module or a part of it."""
    return any(f"{kind.__module__}.".startswith(f"{module}.") for kind in type(tx).__mro__)


def is_async(tx: Any) -> bool:
    modules = ("asyncpg", "sqlalchemy.ext.asyncio")
    return isinstance(tx, psycopg.AsyncConnection) or any(comes_from(tx, module) for module in modules)


def unknown(tx: Any) -> TypeError:
    known = "a connection of psycopg, asyncpg or Django, or a session or connection of SQLAlchemy"
    return TypeError(f"{known} is needed, not {type(tx).__module__}.{type(tx).__qualname__}")


def sqlstate_of(error: BaseException | None) -> str | None:
    """Returns the SQLSTATE of an error of psycopg, psycopg2, asyncpg, or of SQLAlchemy or Django, which wrap them."""
    while error is not None:
        state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
        if isinstance(state, str):
            return state
        wraps = type(error).__module__.startswith("django.db")
        error = getattr(error, "orig", None) or (error.__cause__ if wraps else None)
    return None


def severity_of(error: BaseException) -> str | None:
    """Returns the severity of an error of the server, in English, if the driver tells."""
    error = getattr(error, "orig", None) or error
    diag = getattr(error, "diag", None)
    severity = getattr(diag, "severity_nonlocalized", None) or getattr(error, "severity_en", None)
    return severity if isinstance(severity, str) else None


def require_transaction(statement: Statement, is_in_transaction: bool) -> None:
    if not (is_in_transaction or statement.reads):
        raise RuntimeError(AUTOCOMMIT)


@contextlib.asynccontextmanager
async def connected(connections: Callable[[], Any]) -> AsyncIterator[Any]:
    """A connection of the application, from a function that gives a block with one, or can be awaited for that."""
    giving = connections()
    if not hasattr(giving, "__aenter__"):
        giving = await giving
    async with giving as tx:
        yield tx


async def fetch(tx: Any, statement: Statement, *params: Any) -> Any:
    """Runs a statement in the caller's transaction and returns the first column of its row.

    Raises RuntimeError if there is no transaction and the driver begins none by itself, before it runs anything.
    """
    if isinstance(tx, psycopg.AsyncConnection):
        require_transaction(statement, _in_psycopg(tx))
        async with tx.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(statement.percent, params)
            row = await cursor.fetchone()
            return row[0] if row else None
    if comes_from(tx, "asyncpg"):
        require_transaction(statement, tx.is_in_transaction())
        return await tx.fetchval(statement.dollar, *params)
    if comes_from(tx, "sqlalchemy.ext.asyncio"):
        connection = await tx.connection() if hasattr(tx, "sync_session") else tx
        require_transaction(statement, _in_sqlalchemy(connection.sync_connection))
        return (await tx.execute(*_of_sqlalchemy(statement, params))).scalar()
    return fetch_sync(tx, statement, *params)


def fetch_sync(tx: Any, statement: Statement, *params: Any) -> Any:
    """`fetch` for connections without asyncio."""
    if isinstance(tx, psycopg.Connection):
        require_transaction(statement, _in_psycopg(tx))
        with tx.cursor(row_factory=tuple_row) as cursor:
            row = cursor.execute(statement.percent, params).fetchone()
            return row[0] if row else None
    if is_async(tx):
        raise TypeError(f"{type(tx).__qualname__} is for asyncio: use it with `eskit_lease.Leases`")
    if comes_from(tx, "sqlalchemy"):
        connection = tx.connection() if callable(tx.connection) else tx
        require_transaction(statement, _in_sqlalchemy(connection))
        return tx.execute(*_of_sqlalchemy(statement, params)).scalar()
    if comes_from(tx, "django"):
        require_transaction(statement, tx.in_atomic_block or not tx.get_autocommit())
        with tx.cursor() as cursor:
            cursor.execute(statement.percent, params)
            return cursor.fetchone()[0]
    raise unknown(tx)


class Driver(Protocol):
    """How a face runs a statement of this library, and a transaction, on a connection of the application."""

    async def fetch(self, tx: Any, statement: Statement, *params: Any) -> Any: ...

    def block(self, tx: Any) -> AbstractAsyncContextManager[Any]: ...


class AsyncDriver:
    """The application's connections with asyncio."""

    async def fetch(self, tx: Any, statement: Statement, *params: Any) -> Any:
        return await fetch(tx, statement, *params)

    def block(self, tx: Any) -> AbstractAsyncContextManager[Any]:
        return block(tx)


class SyncDriver:
    """The application's connections without asyncio. Nothing here waits for an event loop."""

    async def fetch(self, tx: Any, statement: Statement, *params: Any) -> Any:
        return fetch_sync(tx, statement, *params)

    @contextlib.asynccontextmanager
    async def block(self, tx: Any) -> AsyncIterator[Any]:
        with block_sync(tx) as begun:
            yield begun


def block(tx: Any) -> AbstractAsyncContextManager[Any]:
    """Returns the driver's own block that begins a transaction, and commits it at a good end."""
    if isinstance(tx, psycopg.AsyncConnection) or comes_from(tx, "asyncpg"):
        _refuse_nested(tx)
        begun: AbstractAsyncContextManager[Any] = tx.transaction()
    elif comes_from(tx, "sqlalchemy.ext.asyncio"):
        begun = tx.begin()
    else:
        raise unknown(tx)
    return begun


def block_sync(tx: Any) -> AbstractContextManager[Any]:
    """`block` for connections without asyncio."""
    if isinstance(tx, psycopg.Connection):
        _refuse_nested(tx)
        begun: AbstractContextManager[Any] = tx.transaction()
    elif comes_from(tx, "sqlalchemy") and not is_async(tx):
        begun = tx.begin()
    elif comes_from(tx, "django"):
        if tx.in_atomic_block:
            raise RuntimeError(NESTED)
        begun = sys.modules["django.db.transaction"].atomic(using=tx.alias, durable=True)
    else:
        raise unknown(tx)
    return begun


def _in_psycopg(tx: psycopg.AsyncConnection[Any] | psycopg.Connection[Any]) -> bool:
    return not tx.autocommit or tx.info.transaction_status != TransactionStatus.IDLE


def _in_sqlalchemy(connection: Any) -> bool:
    return not getattr(connection.connection.dbapi_connection, "autocommit", False)


def _of_sqlalchemy(statement: Statement, params: tuple[Any, ...]) -> tuple[Any, dict[str, Any]]:
    given = {f"p{number}": value for number, value in enumerate(params, 1)}
    return sys.modules["sqlalchemy"].text(statement.colon), given


def _refuse_nested(tx: Any) -> None:
    if comes_from(tx, "asyncpg"):
        nested = tx.is_in_transaction()
    else:
        nested = tx.info.transaction_status not in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN)
    if nested:
        raise RuntimeError(NESTED)
