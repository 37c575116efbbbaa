"""guard, commit and transaction on the connections of each driver."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import psycopg
import pytest
from conftest import TTL, Database, network, until
from psycopg import conninfo

from eskit_lease import Leases, Lost, Partition, Refused, Unsure, sync

asyncpg = pytest.importorskip("asyncpg")
sqlalchemy = pytest.importorskip("sqlalchemy")
sqlalchemy_asyncio = pytest.importorskip("sqlalchemy.ext.asyncio")
orm = pytest.importorskip("sqlalchemy.orm")
django = pytest.importorskip("django")


def url(dsn: str, driver: str) -> Any:
    given = conninfo.conninfo_to_dict(dsn)
    return sqlalchemy.URL.create(
        f"postgresql+{driver}",
        str(given["user"]),
        str(given["password"]),
        str(given["host"]),
        int(str(given["port"])),
        str(given["dbname"]),
    )


@contextlib.asynccontextmanager
async def of_psycopg(dsn: str, autocommit: bool) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=autocommit) as db:
        yield db


@contextlib.asynccontextmanager
async def of_asyncpg(dsn: str, autocommit: bool) -> AsyncIterator[Any]:
    uri = url(dsn, "asyncpg").set(drivername="postgresql").render_as_string(hide_password=False)
    async with asyncpg.create_pool(uri, min_size=0) as pool, pool.acquire() as db:
        if autocommit:
            yield db
        else:
            transaction = db.transaction()
            await transaction.start()
            yield db
            await transaction.rollback()


def of_sqlalchemy(driver: str, session: bool) -> Callable[[str, bool], contextlib.AbstractAsyncContextManager[Any]]:
    @contextlib.asynccontextmanager
    async def connect(dsn: str, autocommit: bool) -> AsyncIterator[Any]:
        engine = sqlalchemy_asyncio.create_async_engine(
            url(dsn, driver), isolation_level="AUTOCOMMIT" if autocommit else "READ COMMITTED"
        )
        async with sqlalchemy_asyncio.AsyncSession(engine) if session else engine.connect() as db:
            yield db
        await engine.dispose()

    return connect


ASYNC = {
    "psycopg": of_psycopg,
    "asyncpg": of_asyncpg,
    "connection of psycopg": of_sqlalchemy("psycopg", False),
    "session of psycopg": of_sqlalchemy("psycopg", True),
    "connection of asyncpg": of_sqlalchemy("asyncpg", False),
    "session of asyncpg": of_sqlalchemy("asyncpg", True),
}
each_async = pytest.mark.parametrize("connect", ASYNC.values(), ids=ASYNC)


async def run(db: Any, sql: str) -> None:
    await db.execute(sqlalchemy.text(sql) if "sqlalchemy" in type(db).__module__ else sql)


@each_async
async def test_guard_and_commit(live: Database, connect: Any) -> None:
    live.execute("SELECT eskit_lease.group_create(%s, 1)", live.name)
    done = asyncio.Event()

    async def work(partition: Partition) -> None:
        async with connect(live.dsn, False) as db:
            await partition.guard(db)
            position = await partition.position(db)
            assert await partition.commit(db, position + 1, position)
        async with connect(live.dsn, True) as db:
            with pytest.raises(RuntimeError, match="no transaction"):
                await partition.commit(db, 9, 0)
            with pytest.raises(RuntimeError, match="no transaction"):
                await partition.guard(db)
        done.set()
        await partition.cancelled.wait()

    async with live.leases() as leases:
        joining = asyncio.ensure_future(leases.join(live.name, work))
        await asyncio.wait({joining, asyncio.ensure_future(done.wait())}, return_when=asyncio.FIRST_COMPLETED)
        assert done.is_set()
        joining.cancel()
    assert live.value("SELECT eskit_lease.cursor_position(%s, 0)", live.name) < 9


@each_async
async def test_transaction(live: Database, connect: Any) -> None:
    insert = f"INSERT INTO kit_test VALUES ('{live.name}', 'x')"
    is_asyncpg = connect is of_asyncpg
    async with live.leases() as leases, leases.lead(live.name) as lead:
        async with connect(live.dsn, is_asyncpg) as db:
            async with lead.transaction(db) as tx:
                await run(tx, insert)
            with pytest.raises(ZeroDivisionError):
                async with lead.transaction(db) as tx:
                    await run(tx, insert)
                    raise ZeroDivisionError
            with pytest.raises(Refused) as raised:
                async with lead.transaction(db) as tx:
                    await run(tx, f"SELECT eskit_lease.fence_check('{live.name}', {lead.fence - 1})")
            assert raised.value.sqlstate == "LF001"
            with pytest.raises(Exception, match="aborted"):  # else a COMMIT that is answered by ROLLBACK
                async with lead.transaction(db) as tx:
                    await run(tx, insert)
                    with contextlib.suppress(Exception):
                        await run(tx, "SELECT 1 / 0")
            assert lead.trusted
        assert live.value("SELECT count(*) FROM kit_test WHERE test = %s", live.name) == 1


@each_async
@pytest.mark.parametrize("way", ["before", "after"])
async def test_unknown_commit(live: Database, connect: Any, way: str) -> None:
    insert = f"INSERT INTO kit_test VALUES ('{live.name}', 'x')"
    async with network(live) as (link, dsn), live.leases() as leases:
        with contextlib.suppress(psycopg.Error, OSError, asyncpg.PostgresError, sqlalchemy.exc.DBAPIError):
            async with leases.lead(live.name) as lead, connect(dsn, connect is of_asyncpg) as db:
                with pytest.raises(Unsure):
                    async with lead.transaction(db) as tx:
                        await run(tx, insert)
                        link.on_data = lambda data: way if b"COMMIT" in data.upper() else None
                link.on_data = lambda data: None
                assert lead.ended
    assert live.value("SELECT count(*) FROM kit_test WHERE test = %s", live.name) == (1 if way == "after" else 0)


async def test_items_with_a_session(live: Database) -> None:
    engine = sqlalchemy_asyncio.create_async_engine(url(live.dsn, "asyncpg"))
    sessions = sqlalchemy_asyncio.async_sessionmaker(engine)
    live.execute("SELECT eskit_lease.queue_create(%s)", live.name)
    live.execute("SELECT eskit_lease.item_add(%s, '{}')", live.name)
    left = "SELECT count(*) FROM eskit_lease.items WHERE queue = %s"
    async with live.leases() as leases:
        working = asyncio.ensure_future(
            leases.work(live.name, lambda item, db: db.execute(sqlalchemy.text("SELECT 1")), sessions)
        )
        await until(lambda: live.value(left, live.name) == 0)
        await leases.drain(5)
        await working
    await engine.dispose()


# ---- without asyncio ----


@contextlib.contextmanager
def sync_psycopg(dsn: str, autocommit: bool) -> Iterator[Any]:
    with psycopg.connect(dsn, autocommit=autocommit) as db:
        yield db


def sync_sqlalchemy(session: bool) -> Callable[[str, bool], contextlib.AbstractContextManager[Any]]:
    @contextlib.contextmanager
    def connect(dsn: str, autocommit: bool) -> Iterator[Any]:
        level = "AUTOCOMMIT" if autocommit else "READ COMMITTED"
        engine = sqlalchemy.create_engine(url(dsn, "psycopg"), isolation_level=level)
        with orm.Session(engine) if session else engine.connect() as db:
            yield db
        engine.dispose()

    return connect


@contextlib.contextmanager
def of_django(dsn: str, autocommit: bool) -> Iterator[Any]:
    from django.conf import settings  # type: ignore[import-untyped]
    from django.db import connections, transaction  # type: ignore[import-untyped]

    given = conninfo.conninfo_to_dict(dsn)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": given["dbname"],
        "USER": given["user"],
        "PASSWORD": given["password"],
        "HOST": given["host"],
        "PORT": given["port"],
    }
    if not settings.configured:
        settings.configure(DATABASES={"default": database})
        django.setup()
    db = connections["default"]
    db.close()
    db.settings_dict.update(HOST=given["host"], PORT=given["port"])
    with contextlib.nullcontext() if autocommit else transaction.atomic():
        yield db
    db.close()


SYNC = {
    "psycopg": sync_psycopg,
    "connection": sync_sqlalchemy(False),
    "session": sync_sqlalchemy(True),
    "django": of_django,
}
each_sync = pytest.mark.parametrize("connect", SYNC.values(), ids=SYNC)


def run_sync(db: Any, sql: str) -> None:
    if hasattr(db, "in_atomic_block"):
        db.cursor().execute(sql)
    else:
        db.execute(sqlalchemy.text(sql) if "sqlalchemy" in type(db).__module__ else sql)


@each_sync
def test_guard_and_commit_without_asyncio(live: Database, connect: Any) -> None:
    live.execute("SELECT eskit_lease.group_create(%s, 1)", live.name)
    told: list[BaseException | None] = []

    def work(partition: sync.Partition) -> None:
        try:
            with connect(live.dsn, False) as db:
                partition.guard(db)
                position = partition.position(db)
                assert partition.commit(db, position + 1, position)
            with connect(live.dsn, True) as db:
                with pytest.raises(RuntimeError, match="no transaction"):
                    partition.commit(db, 9, 0)
                with pytest.raises(RuntimeError, match="no transaction"):
                    partition.guard(db)
            told.append(None)
        except BaseException as error:
            told.append(error)
        draining.set()

    draining = threading.Event()
    with sync.Leases(live.dsn, ttl=TTL) as leases:

        def drain() -> None:
            draining.wait(20)
            leases.drain(5)

        threading.Thread(target=drain).start()
        leases.join(live.name, work)
    assert told == [None]
    assert live.value("SELECT eskit_lease.cursor_position(%s, 0)", live.name) < 9


@each_sync
def test_transaction_without_asyncio(live: Database, connect: Any) -> None:
    insert = f"INSERT INTO kit_test VALUES ('{live.name}', 'x')"
    with sync.Leases(live.dsn, ttl=TTL) as leases, leases.lead(live.name) as lead:
        with connect(live.dsn, connect is of_django) as db:
            with lead.transaction(db) as tx:
                run_sync(tx, insert)
            with pytest.raises(ZeroDivisionError):
                with lead.transaction(db) as tx:
                    run_sync(tx, insert)
                    raise ZeroDivisionError
            with pytest.raises(Refused):
                with lead.transaction(db) as tx:
                    run_sync(tx, f"SELECT eskit_lease.fence_check('{live.name}', {lead.fence - 1})")
            with pytest.raises(Exception, match="aborted"):
                with lead.transaction(db) as tx:
                    run_sync(tx, insert)
                    with contextlib.suppress(Exception):
                        run_sync(tx, "SELECT 1 / 0")
            assert lead.trusted
            live.force(live.name)
            with pytest.raises((Refused, Lost)):
                while True:
                    with lead.transaction(db) as tx:
                        run_sync(tx, "SELECT 1")
            with pytest.raises(Lost):
                with lead.transaction(db) as tx:
                    run_sync(tx, insert)
    assert live.value("SELECT count(*) FROM kit_test WHERE test = %s", live.name) == 1


@each_sync
@pytest.mark.parametrize("way", ["before", "after"])
async def test_unknown_commit_without_asyncio(live: Database, connect: Any, way: str) -> None:
    insert = f"INSERT INTO kit_test VALUES ('{live.name}', 'x')"
    async with network(live) as (link, dsn):

        def lead() -> None:
            with (
                sync.Leases(live.dsn, ttl=TTL) as leases,
                leases.lead(live.name) as lead,
                connect(dsn, connect is of_django) as db,
            ):
                with pytest.raises(Unsure):
                    with lead.transaction(db) as tx:
                        run_sync(tx, insert)
                        link.on_data = lambda data: way if b"COMMIT" in data.upper() else None
                link.on_data = lambda data: None
                assert lead.ended

        with contextlib.suppress(psycopg.Error, sqlalchemy.exc.DBAPIError):
            await asyncio.to_thread(lead)
    assert live.value("SELECT count(*) FROM kit_test WHERE test = %s", live.name) == (1 if way == "after" else 0)


async def test_a_connection_of_the_other_kind(live: Database) -> None:
    async with await live.connect() as db:
        with sync.Leases(live.dsn, ttl=TTL) as leases, leases.lead(live.name) as lead:
            with pytest.raises(TypeError, match="asyncio"):
                lead.guard(db)
    async with Leases(live.dsn, ttl=TTL) as both, both.lead(live.name) as also:
        with live.db.transaction():
            await also.guard(live.db)  # it blocks for a moment
