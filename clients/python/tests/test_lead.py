"""Leading, and the transactions of a leader, on a server."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import psycopg
import pytest
from conftest import TTL, Database, consumer, network, no_free_descriptor, until

from eskit_lease import Closed, Leases, Lost, Refused, Unsure

INSERT = "INSERT INTO kit_test (test, note) VALUES (%s, %s)"


async def test_a_leader_writes_under_its_fence(live: Database) -> None:
    async with live.leases() as leases, await live.connect() as db:
        assert leases.state == "trusted"
        async with leases.lead(live.name) as lead:
            assert lead.trusted
            assert (lead.name, lead.session) == (live.name, leases.session)
            assert live.value("SELECT fence FROM eskit_lease.leases WHERE resource = %s", live.name) == lead.fence
            async with db.transaction():
                await lead.guard(db)
                await db.execute(INSERT, (live.name, "guard"))
            async with lead.transaction(db) as tx:
                await tx.execute(INSERT, (live.name, "transaction"))
        assert not live.value(
            "SELECT count(*) FROM eskit_lease.leases WHERE resource = %s AND state = 'held'", live.name
        )
        assert live.value("SELECT count(*) FROM kit_test WHERE test = %s", live.name) == 2
        with pytest.raises(Lost):
            async with db.transaction():
                await lead.guard(db)
        with pytest.raises(Lost):
            async with lead.transaction(db):
                pytest.fail("the block of a scope that has ended ran")


async def test_a_connection_in_no_transaction_is_refused(live: Database) -> None:
    async with live.leases() as leases, await live.connect() as db, await live.connect(autocommit=False) as implicit:
        async with leases.lead(live.name) as lead:
            with pytest.raises(RuntimeError, match="no transaction"):
                await lead.guard(db)
            await lead.guard(implicit)  # it begins one by itself
            await implicit.rollback()
            async with db.transaction():
                with pytest.raises(RuntimeError, match="in a transaction"):
                    async with lead.transaction(db):
                        pytest.fail("a nested transaction began")


async def test_the_next_leader_waits_its_turn(live: Database) -> None:
    async with live.leases() as one, live.leases() as other:
        async with one.lead(live.name) as first:
            waiting = asyncio.ensure_future(lead_once(other, live.name))
            await until(lambda: live.value("SELECT count(*) FROM eskit_lease.waiters WHERE resource = %s", live.name))
            assert not waiting.done()
        assert await waiting > first.fence


async def lead_once(leases: Any, name: str) -> int:
    async with leases.lead(name) as lead:
        return int(lead.fence)


async def test_a_caller_that_stops_waiting_gives_its_place_up(live: Database) -> None:
    waiters = "SELECT count(*) FROM eskit_lease.waiters WHERE resource = %s"
    async with live.leases() as one, live.leases() as other:
        async with one.lead(live.name):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(lead_once(other, live.name), 0.3)
            await until(lambda: not live.value(waiters, live.name))
        for pause in range(0, 30, 2):  # also when it is granted the lease at this moment
            waiting = asyncio.ensure_future(lead_once(other, live.name))
            await asyncio.sleep(pause / 1000)
            waiting.cancel()
            await asyncio.wait({waiting})
            assert await asyncio.wait_for(lead_once(one, live.name), 5)


async def test_scopes_of_one_name_follow_one_another(live: Database) -> None:
    fences: list[int] = []

    async def one() -> None:
        async with leases.lead(live.name) as lead:
            fences.append(lead.fence)
            await asyncio.sleep(0.02)
            assert fences[-1] == lead.fence

    async with live.leases() as leases:
        await asyncio.gather(*(one() for _ in range(5)))
    assert fences == sorted(set(fences))


async def test_try_lead(live: Database) -> None:
    async with live.leases() as one, live.leases() as other:
        async with one.try_lead(live.name) as lead:
            assert lead is not None
            for leases in (one, other):
                async with leases.try_lead(live.name) as none:
                    assert none is None
        async with other.try_lead(live.name) as lead:
            assert lead is not None


async def test_a_lease_taken_by_force(live: Database) -> None:
    """The scope ends at once, and leaves nothing behind: another process gets the lease, and keeps it."""
    async with live.leases() as one, live.leases() as other:
        began = time.monotonic()
        with pytest.raises(Lost) as raised:
            async with one.lead(live.name) as lead:
                live.force(live.name)
                await asyncio.sleep(10)
        assert time.monotonic() - began < 5
        assert (raised.value.resource, raised.value.fence) == (live.name, lead.fence)
        async with other.lead(live.name) as next_lead:
            assert next_lead.fence > lead.fence
            await asyncio.sleep(0.1)
            assert next_lead.trusted


async def test_a_lease_taken_by_force_while_the_work_goes_on(live: Database) -> None:
    """The work swallows its cancel, and its guard tells."""
    async with live.leases() as leases, await live.connect() as db:
        async with leases.lead(live.name) as lead:
            live.force(live.name)
            refused: list[Exception] = []
            while not refused:
                try:
                    async with lead.transaction(db):
                        pass
                    await asyncio.sleep(0.001)
                except (Lost, Refused) as error:
                    refused.append(error)
                except asyncio.CancelledError:
                    pass
            with pytest.raises(Lost):
                async with lead.transaction(db):
                    pass
        assert await lead_once(leases, live.name) > lead.fence


async def test_trust_that_ends_cancels_whatever_the_network_does(live: Database) -> None:
    states: list[str] = []
    async with (
        network(live) as (link, dsn),
        live.leases(dsn, on_state=states.append) as leases,
        await live.connect() as db,
    ):
        began = 0.0
        with pytest.raises(Lost):
            async with leases.lead(live.name) as lead:
                began = time.monotonic()
                link.silence()
                asyncio.get_running_loop().call_later(2 * TTL, link.mend)
                try:
                    await db.execute("SELECT pg_sleep(30)")  # a query of the work is interrupted, too
                finally:
                    assert time.monotonic() - began < 1.5 * TTL
                    assert not lead.trusted
        async with leases.lead(live.name) as again:
            assert again.fence > lead.fence
    assert [states[0], states[-1]] == ["trusted", "closed"]
    assert "doubting" in states


@pytest.mark.parametrize("trouble", ["reset", "forget", "terminate"])
async def test_a_lost_connection_is_no_lost_session(live: Database, trouble: str) -> None:
    async with network(live) as (link, dsn):
        async with live.leases(f"{dsn} application_name={live.name}", ttl=3) as leases:
            async with leases.lead(live.name) as lead:
                for _ in range(2):
                    if trouble == "terminate":
                        assert live.terminate(live.name) == 1
                    else:
                        getattr(link, trouble)()
                    await asyncio.sleep(3)
                assert lead.trusted


async def test_a_session_that_is_ended_by_another(live: Database) -> None:
    """It warns, pauses, and opens another session without a take-over."""
    states: list[str] = []
    async with live.leases(name=live.name, takeover=True, on_state=states.append) as first:
        async with live.leases(name=live.name, takeover=True) as second:
            await until(lambda: states[-2:] == ["lost", "trusted"])
            assert second.state == "trusted"
            assert first.session != second.session


async def test_takeover_inherits(live: Database) -> None:
    heir = live.leases(name=live.name, takeover=True)
    async with live.leases(name=live.name) as former:
        with pytest.raises(Lost):
            async with former.lead(live.name) as lead:
                opening = asyncio.ensure_future(heir.open())
                await asyncio.sleep(5)
        await opening
        async with heir.try_lead(live.name) as inherited:
            assert inherited is not None
            assert inherited.fence > lead.fence
    await heir.close()


async def test_news_comes_for_events_of_the_watched_table(live: Database) -> None:
    table = f"events_{live.name}"
    live.execute(f"CREATE TABLE {table} (position bigint DEFAULT eskit_lease.position_next())")
    try:
        dsn = f"{live.dsn}?application_name={live.name}"
        async with live.leases(dsn, watch=table, ttl=10) as leases, leases.lead(live.name) as lead:
            while True:  # news may be in vain
                try:
                    await asyncio.wait_for(lead.news(), 0.3)
                except asyncio.TimeoutError:
                    break
            live.execute(f"INSERT INTO {table} DEFAULT VALUES")
            await asyncio.wait_for(lead.news(), 1)
            live.execute(f"INSERT INTO {table} DEFAULT VALUES")
            await asyncio.sleep(0.5)
            began = time.monotonic()
            await lead.news()  # it came while nothing waited
            assert time.monotonic() - began < 0.1
            live.execute(f"DROP TABLE {table}")
            assert live.terminate(live.name) == 1
            await asyncio.sleep(0.5)
            assert lead.trusted  # a table that is gone ends no session
    finally:
        live.execute(f"DROP TABLE IF EXISTS {table}")
    with pytest.raises(psycopg.errors.UndefinedTable):
        await live.leases(watch=table).open()


async def test_a_statement_timeout_ends_no_session(live: Database) -> None:
    dsn = f"{live.dsn}?options=-c%20statement_timeout%3D150"
    async with live.leases(dsn, ttl=2) as leases, leases.lead(live.name) as lead:
        await asyncio.sleep(4)
        assert lead.trusted


async def test_a_refusal_says_nothing_about_trust(live: Database) -> None:
    async with live.leases() as one, live.leases() as other, one.lead(live.name):
        waiting = asyncio.ensure_future(lead_once(other, live.name))
        async with other.lead(f"{live.name} x") as lead:
            await until(lambda: live.value("SELECT count(*) FROM eskit_lease.waiters WHERE resource = %s", live.name))
            await asyncio.sleep(0.1)
            assert lead.trusted
        waiting.cancel()


async def test_a_refusal_without_a_place_in_line_is_asked_again(live: Database) -> None:
    async with live.leases(ttl=30) as leases, await live.connect() as db:
        session = live.value("SELECT session FROM eskit_lease.session_open(%s, '1 min')", f"{live.name} x")
        async with db.transaction(force_rollback=True):
            await db.execute("SELECT eskit_lease.lease_acquire(%s, %s)", (live.name, session))
            waiting = asyncio.ensure_future(lead_once(leases, live.name))
            await asyncio.sleep(0.3)
            assert not waiting.done()
        assert await asyncio.wait_for(waiting, 5)
        live.execute("SELECT eskit_lease.session_close(%s)", session)


async def test_a_lease_that_came_back_under_another_fence_is_given_back(live: Database) -> None:
    async with live.leases() as leases:
        with pytest.raises(Lost):
            async with leases.lead(live.name) as lead:
                live.force(live.name)
                assert live.value("SELECT fence FROM eskit_lease.lease_acquire(%s, %s)", live.name, lead.session)
                await asyncio.sleep(10)
        held = "SELECT count(*) FROM eskit_lease.leases WHERE resource = %s AND state = 'held'"
        assert live.value(held, live.name) == 0


@pytest.mark.parametrize("refused", [("lease_release",), ("lease_release", "lease_release_many")])
async def test_a_lead_never_begins_under_the_fence_of_another(live: Database, refused: tuple[str, ...]) -> None:
    """The release of the first one was refused."""
    with consumer(live) as (role, dsn):
        async with live.leases(dsn) as leases:
            async with leases.lead(live.name) as lead:
                for function in refused:
                    live.execute(f"REVOKE EXECUTE ON FUNCTION eskit_lease.{function} FROM {role}")
            async with leases.try_lead(live.name) as again:
                assert again is None or again.fence > lead.fence
            waiting = asyncio.ensure_future(lead_once(leases, live.name))
            await asyncio.sleep(0.1)
            live.execute(f"SELECT eskit_lease.grant_consumer('{role}')")
            assert await asyncio.wait_for(waiting, 5) > lead.fence


async def test_a_server_that_is_not_ready_is_asked_again(
    live: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fail = f"fail_{live.name}"
    live.execute(
        f"""CREATE FUNCTION {fail}(text, uuid, boolean) RETURNS int LANGUAGE plpgsql
            AS $$BEGIN RAISE 'told to fail' USING ERRCODE = '55000'; END$$"""
    )
    async with live.leases() as leases:
        with monkeypatch.context() as patched:
            patched.setattr("eskit_lease._lead.ACQUIRE", f"SELECT {fail}(%s, %s, %s)")
            with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
                async with leases.try_lead(live.name):
                    pass
            waiting = asyncio.ensure_future(lead_once(leases, live.name))
            await until(lambda: "told to fail" in caplog.text or waiting.done())
        assert await asyncio.wait_for(waiting, 5)
    live.execute(f"DROP FUNCTION {fail}")


async def test_trust_that_is_back_before_anything_is_cancelled(live: Database) -> None:
    """A verb that looked meanwhile looks again, although no ask follows."""
    async with live.leases() as leases:
        keeper = leases._keeper
        keeper.core.trusted_until, trusted_until = 0, keeper.core.trusted_until
        waiting = asyncio.ensure_future(lead_once(leases, live.name))
        for _ in range(5):
            await asyncio.sleep(0)  # it begins, and looks
        asks, sent = keeper.asks, trusted_until - 1000 * TTL
        keeper.core.trusted_until = trusted_until
        keeper._hear(str(leases.session), sent + 1, round(1000 * TTL))
        assert keeper.asks == asks
        assert await asyncio.wait_for(waiting, 5)


async def test_a_release_that_must_wait_keeps_one_connection(live: Database) -> None:
    """A transaction under the fence is still open, as on a connection that was cut off."""
    dsn = f"{live.dsn}?application_name={live.name}"
    waits = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'"

    async def lead_and_leave() -> None:
        async with leases.lead(live.name) as lead:
            await lead.guard(db)

    async with live.leases(dsn) as leases, await live.connect(autocommit=False) as db:
        await db.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        leading = asyncio.ensure_future(lead_and_leave())
        await asyncio.sleep(2 * TTL)
        assert live.value(waits, live.name) <= 1
        assert not leading.done()
        await db.rollback()
        await asyncio.wait_for(leading, 5)


async def test_a_release_needs_no_free_descriptor(live: Database) -> None:
    async with live.leases() as leases:
        async with contextlib.AsyncExitStack() as leading:
            await leading.enter_async_context(leases.lead(live.name))
            with no_free_descriptor():
                await asyncio.wait_for(leading.aclose(), 10)
        held = "SELECT count(*) FROM eskit_lease.leases WHERE resource = %s AND state = 'held'"
        assert live.value(held, live.name) == 0


async def test_a_silent_call_is_given_up_without_a_free_descriptor(live: Database) -> None:
    async with network(live) as (link, dsn), live.leases(dsn) as leases:
        with no_free_descriptor():
            link.forget()
            await until(lambda: leases.state == "doubting")
        await until(lambda: leases.state == "trusted")


async def test_a_connection_that_is_made_too_late_is_closed(live: Database) -> None:
    made: list[psycopg.AsyncConnection[Any]] = []

    async def make() -> psycopg.AsyncConnection[Any]:
        await asyncio.sleep(0.3)
        made.append(await live.connect())
        return made[0]

    async def connect() -> psycopg.AsyncConnection[Any]:
        making = asyncio.ensure_future(make())
        while not making.done():  # it does not let itself be cancelled
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({making})
        return making.result()

    leases = Leases(connect, ttl=TTL)
    opening = asyncio.ensure_future(leases.open())
    await asyncio.sleep(0.1)
    await leases.close()
    with pytest.raises(Closed):
        await opening
    await until(lambda: made and made[0].closed)


# ---- how a commit ends ----


@pytest.mark.parametrize("way", ["before", "after"])
async def test_an_unknown_commit(live: Database, way: str) -> None:
    async with network(live) as (link, dsn), live.leases() as leases:
        db = await live.connect(dsn)
        async with leases.lead(live.name) as lead:
            link.on_data = lambda data: way if b"COMMIT" in data else None
            with pytest.raises(Unsure) as raised:
                async with lead.transaction(db) as tx:
                    await tx.execute(INSERT, (live.name, way))
            assert isinstance(raised.value.__cause__, psycopg.OperationalError)
            assert lead.ended
            with pytest.raises(Lost):
                async with lead.transaction(db):
                    pass
        assert await lead_once(leases, live.name) > lead.fence
        assert live.value("SELECT count(*) FROM kit_test WHERE test = %s", live.name) == (1 if way == "after" else 0)


async def test_a_work_that_is_cancelled_in_its_commit(live: Database) -> None:
    async with network(live) as (link, dsn), live.leases() as leases:
        db = await live.connect(dsn)
        async with leases.lead(live.name) as lead:

            def look(data: bytes) -> None:
                if b"COMMIT" in data:
                    link.silence()
                    task.cancel()
                    asyncio.get_running_loop().call_later(0.2, link.mend)

            async def write() -> None:
                async with lead.transaction(db) as tx:
                    await tx.execute(INSERT, (live.name, "x"))

            link.on_data = look
            task = asyncio.ensure_future(write())
            with pytest.raises(asyncio.CancelledError):
                await task
            assert lead.ended


async def test_refused_transactions(live: Database) -> None:
    async with live.leases() as leases, await live.connect() as db, await live.connect() as other:
        async with leases.lead(live.name) as lead:
            await other.execute(f"CREATE TABLE locked_{live.name} ()")
            async with other.transaction():
                await other.execute(f"LOCK TABLE locked_{live.name}")
                with pytest.raises(Refused) as raised:
                    async with lead.transaction(db):
                        await db.execute(f"LOCK TABLE locked_{live.name} NOWAIT")
            assert raised.value.sqlstate == "55P03"
            assert raised.value.fence == lead.fence
            assert isinstance(raised.value.__cause__, psycopg.errors.LockNotAvailable)
            await other.execute(f"DROP TABLE locked_{live.name}")
            with pytest.raises(psycopg.errors.DivisionByZero):
                async with lead.transaction(db):
                    await db.execute("SELECT 1 / 0")
            with pytest.raises(ZeroDivisionError):
                async with lead.transaction(db):
                    await db.execute(INSERT, (live.name, "rolled back"))
                    1 / 0  # noqa: B018
            live.execute(f"CREATE TABLE late_{live.name} (x int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
            with pytest.raises(psycopg.errors.UniqueViolation):  # an answer to COMMIT is no doubt
                async with lead.transaction(db):
                    await db.execute(f"INSERT INTO late_{live.name} VALUES (1), (1)")
            live.execute(f"DROP TABLE late_{live.name}")
            assert lead.trusted
    assert live.value("SELECT count(*) FROM kit_test WHERE test = %s", live.name) == 0


# ---- the end ----


async def test_a_drain_waits_for_what_has_begun(live: Database) -> None:
    async with live.leases() as leases:
        begun, done = asyncio.Event(), asyncio.Event()

        async def lead() -> None:
            async with leases.lead(live.name) as lead:
                begun.set()
                while not lead.draining:
                    await lead.news()
                await asyncio.sleep(0.3)
                done.set()

        leading = asyncio.ensure_future(lead())
        waiting = asyncio.ensure_future(lead_once(leases, live.name))
        await begun.wait()
        began = time.monotonic()
        await leases.drain(10)
        assert 0.3 <= time.monotonic() - began < 5
        assert done.is_set()
        await leading
        with pytest.raises(Closed):
            await waiting
        with pytest.raises(Closed):
            await lead_once(leases, live.name)
        await leases.drain(10)
        await leases.close()
        assert leases.state == "closed"
        with pytest.raises(RuntimeError):
            await leases.open()


async def test_the_end_of_a_drain_cancels_the_rest(live: Database) -> None:
    async with live.leases() as leases:
        began = time.monotonic()
        with pytest.raises(Lost):
            async with leases.lead(live.name):
                draining = asyncio.ensure_future(leases.drain(0.3))
                await asyncio.sleep(10)
        assert 0.3 <= time.monotonic() - began < 5
        await draining
    assert live.value("SELECT count(*) FROM eskit_lease.sessions WHERE consumer = %s", leases.name) == 0


async def test_close_within_the_ttl_on_a_silent_network(live: Database) -> None:
    async with network(live) as (link, dsn):
        leases = live.leases(dsn)
        await leases.open()

        async def stubborn() -> None:
            async with leases.lead(live.name) as lead:
                await asyncio.shield(asyncio.sleep(3 * TTL))
                await lead.news()

        working = asyncio.ensure_future(stubborn())
        await asyncio.sleep(0.2)
        link.silence()
        began = time.monotonic()
        await leases.close()
        assert time.monotonic() - began < 2 * TTL
        await asyncio.wait({working}, timeout=1)
        assert isinstance(working.exception(), Lost)
    assert not [task for task in asyncio.all_tasks() if "eskit_lease" in repr(task.get_coro())]


async def test_a_close_from_within_a_scope(live: Database) -> None:
    leases = live.leases()
    await leases.open()
    with pytest.raises(Lost):
        async with leases.lead(live.name):
            await leases.close()
    await leases.close()
    assert leases.state == "closed"


async def test_an_own_function_connects(live: Database) -> None:
    made = 0

    async def connect() -> psycopg.AsyncConnection[Any]:
        nonlocal made
        made += 1
        return await psycopg.AsyncConnection.connect(live.dsn)  # its settings are the keeper's business

    async with Leases(connect, ttl=TTL) as leases, leases.lead(live.name) as lead:
        await asyncio.sleep(TTL)
        assert lead.trusted
    assert made == 2


async def test_an_idle_keeper_has_one_connection(live: Database) -> None:
    name = f"idle {live.name}"
    count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
    async with live.leases(f"{live.dsn}?application_name={name.replace(' ', '%20')}", ttl=15) as leases:
        async with leases.lead(live.name):
            assert live.value(count, name) == 2
            await asyncio.sleep(11)
            assert live.value(count, name) == 1
        assert live.value(count, name) == 2
    await until(lambda: live.value(count, name) == 0)
