"""Runs async tests, and gives the live ones a server, a schema of their own, and networks that fail."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import secrets
import socket
import struct
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import conninfo

from eskit_lease import Leases

TTL = 2.0
LIMIT = 60.0  # seconds of an async test; the `timeout` of pyproject.toml ends one that does not let itself be cancelled


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}

    async def bounded() -> None:
        telling = asyncio.get_running_loop().call_later(LIMIT - 1, tell_tasks)
        await asyncio.wait_for(pyfuncitem.obj(**given), LIMIT)
        telling.cancel()

    asyncio.run(bounded())
    return True


def tell_tasks() -> None:
    for task in asyncio.all_tasks():
        print(task, file=sys.stderr)
        task.print_stack()


class Database:
    """The server of DATABASE_URL. `name` is unique to a test: use it in names."""

    def __init__(self, dsn: str) -> None:
        self.dsn, self.name = dsn, secrets.token_hex(4)
        self.db = psycopg.connect(dsn, autocommit=True)

    def execute(self, sql: str, *params: Any) -> psycopg.Cursor[Any]:
        return self.db.execute(sql, params)

    def value(self, sql: str, *params: Any) -> Any:
        row = self.execute(sql, *params).fetchone()
        return row[0] if row else None

    def leases(self, dsn: str | None = None, **given: Any) -> Leases:
        return Leases(dsn or self.dsn, **{"ttl": TTL} | given)

    async def connect(self, dsn: str | None = None, autocommit: bool = True) -> psycopg.AsyncConnection[Any]:
        return await psycopg.AsyncConnection.connect(dsn or self.dsn, autocommit=autocommit)

    def terminate(self, application_name: str) -> int:
        """Ends the connection of a keeper, which waits."""
        kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE %s"
        return int(self.value(f"{kill} AND application_name = %s", "%session_wait%", application_name))

    def force(self, name: str) -> None:
        take = "SELECT eskit_lease.lease_force_release(resource, fence, 'a test')"
        assert self.value(f"{take} FROM eskit_lease.leases WHERE resource = %s", name)


@pytest.fixture
def live() -> Iterator[Database]:
    dsn = os.environ.get("DATABASE_URL")
    if not dsn:
        pytest.skip("DATABASE_URL is not set")
    database = Database(dsn)
    database.execute("CREATE TABLE IF NOT EXISTS kit_test (test text, note text)")
    yield database
    database.db.close()


class Network:
    """A link to the server that can be cut."""

    def __init__(self, dsn: str) -> None:
        given = conninfo.conninfo_to_dict(dsn)
        self._target = (str(given.get("host", "127.0.0.1")), int(str(given.get("port", 5432))))
        self._dsn = dsn
        self._ends: set[asyncio.StreamWriter] = set()
        self._open = asyncio.Event()
        self._open.set()
        self._carrying: set[asyncio.Task[None]] = set()
        self.on_data: Callable[[bytes], str | None] = lambda data: None
        """Looks at what goes to the server: "before" or "after" resets the connection before or after it arrives."""

    async def start(self) -> str:
        """Returns the connection string of the link."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        return conninfo.make_conninfo(self._dsn, host="127.0.0.1", port=port)

    def silence(self) -> None:
        """Data is held back from now on, without notice to either side."""
        self._open.clear()

    def mend(self) -> None:
        self._open.set()

    def forget(self) -> None:
        """Present connections stay silent for ever; new ones get through."""
        self.silence()
        self._open = asyncio.Event()
        self._open.set()

    def reset(self) -> None:
        """Breaks all connections."""
        for end in tuple(self._ends):
            reset(end)

    async def stop(self) -> None:
        self._server.close()
        for task in tuple(self._carrying):
            task.cancel()
        self.reset()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_open = self._open
        try:
            await is_open.wait()
            server_reader, server_writer = await asyncio.open_connection(*self._target)
        except (OSError, asyncio.CancelledError):
            reset(writer)
            return
        self._ends |= {writer, server_writer}
        back = asyncio.ensure_future(self._answer(server_reader, writer, is_open))
        there = asyncio.ensure_future(self._ask(reader, server_writer, writer, back, is_open))
        for task in (there, back):
            self._carrying.add(task)
            task.add_done_callback(self._carrying.discard)

    async def _ask(
        self,
        client: asyncio.StreamReader,
        server: asyncio.StreamWriter,
        to_client: asyncio.StreamWriter,
        back: asyncio.Task[None],
        is_open: asyncio.Event,
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await client.read(65536):
                await is_open.wait()
                way = self.on_data(data)
                if way:
                    back.cancel()
                if way != "before":
                    server.write(data)
                    await server.drain()
                if way:
                    await asyncio.sleep(0.05)
                    reset(to_client)
                    break
        await is_open.wait()
        server.close()

    async def _answer(self, server: asyncio.StreamReader, client: asyncio.StreamWriter, is_open: asyncio.Event) -> None:
        with contextlib.suppress(OSError):
            while data := await server.read(65536):
                await is_open.wait()
                client.write(data)
                await client.drain()
        await is_open.wait()
        client.close()


def reset(end: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.transport.abort()


@contextlib.asynccontextmanager
async def network(database: Database) -> AsyncIterator[tuple[Network, str]]:
    link = Network(database.dsn)
    dsn = await link.start()
    try:
        yield link, dsn
    finally:
        await link.stop()


@contextlib.contextmanager
def consumer(database: Database) -> Iterator[tuple[str, str]]:
    """A role with the rights of a consumer, which a test may revoke, and the connection string to it."""
    role = f"r{database.name}"
    database.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    database.execute(f"SELECT eskit_lease.grant_consumer('{role}')")
    yield role, conninfo.make_conninfo(database.dsn, user=role, password="x")
    database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


@contextlib.contextmanager
def no_free_descriptor() -> Iterator[None]:
    """This process can open no file, and duplicate none."""
    resource = pytest.importorskip("resource")
    free = os.dup(0)
    os.close(free)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            os.dup(0)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


async def until(condition: Callable[[], Any], timeout: float = 20) -> Any:
    deadline = time.monotonic() + timeout
    while not (result := condition()):
        assert time.monotonic() < deadline, "not in time"
        await asyncio.sleep(0.01)
    return result
