"""Partitions, work items and run-once keys, on a server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from conftest import TTL, Database, consumer, network, until
from psycopg import conninfo

from eskit_lease import Closed, Execution, Item, Leases, Lost, Partition, Refused, Unsure

OWNED = "SELECT count(*) FROM eskit_lease.group_partitions WHERE group_name = %s AND owner = %s"


class Member:
    """A process in a group. `work` is called when a partition is taken up."""

    def __init__(self, leases: Leases, work: Callable[[Partition], Any] | None = None) -> None:
        self.leases, self.work = leases, work
        self.begun: list[Partition] = []
        self.over: list[Partition] = []

    async def serve(self, partition: Partition) -> None:
        self.begun.append(partition)
        try:
            if self.work is not None:
                await self.work(partition)
            while not partition.draining:
                await partition.news()
        finally:
            self.over.append(partition)

    def owned(self) -> set[int]:
        return {one.partition for one in self.begun} - {one.partition for one in self.over}


async def test_members_share_the_partitions(live: Database) -> None:
    live.execute("SELECT eskit_lease.group_create(%s, 4)", live.name)
    async with live.leases() as leases, live.leases() as others:

        async def advance(partition: Partition) -> None:
            assert partition.group == partition.name == live.name
            async with await live.connect() as db:
                done = await partition.position(db)
                async with db.transaction():
                    await partition.guard(db)
                    assert await partition.commit(db, done + 1, done)
                    assert not await partition.commit(db, done + 1, done)
                with pytest.raises(RuntimeError, match="no transaction"):
                    await partition.commit(db, done + 2, done + 1)
                with pytest.raises(Refused):
                    async with partition.transaction(db):
                        await partition.commit(db, done + 9, done + 5)

        one, other = Member(leases, advance), Member(others)
        joining = asyncio.ensure_future(leases.join(live.name, one.serve))
        await until(lambda: one.owned() == {0, 1, 2, 3})
        await until(
            lambda: live.value("SELECT sum(position) FROM eskit_lease.group_lag WHERE group_name = %s", live.name) == 4
        )
        also = asyncio.ensure_future(others.join(live.name, other.serve))
        await until(lambda: len(other.owned()) == 2 and len(one.owned()) == 2)
        assert not one.owned() & other.owned()
        moved = {partition.partition: partition for partition in one.over}
        assert all(moved[new.partition].fence < new.fence for new in other.begun)
        joining.cancel()
        with pytest.raises(asyncio.CancelledError):
            await joining
        assert live.value("SELECT count(*) FROM eskit_lease.group_members WHERE group_name = %s", live.name) == 1
        assert live.value(OWNED, live.name, leases.name) == 0
        await until(lambda: other.owned() == {0, 1, 2, 3})
        await others.drain(5)
        await also
        assert other.owned() == set()


@pytest.mark.parametrize("error", [Refused("told"), Unsure("told"), ValueError("told"), None])
async def test_work_that_ends_begins_again_under_a_new_fence(
    live: Database, error: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    live.execute("SELECT eskit_lease.group_create(%s, 1)", live.name)
    at: list[float] = []
    fences: list[int] = []

    async def work(partition: Partition) -> None:
        at.append(time.monotonic())
        fences.append(partition.fence)
        if len(at) > 3:
            await partition.cancelled.wait()
        if error is not None:
            raise error

    async with live.leases() as leases:
        joining = asyncio.ensure_future(leases.join(live.name, work))
        await until(lambda: len(at) > 3)
        joining.cancel()
    assert fences == sorted(set(fences))
    is_clear = error is None or isinstance(error, ValueError)
    assert (at[3] - at[0] >= 0.7) == is_clear  # 0.1, 0.2 and 0.4 s
    assert any(record.exc_info for record in caplog.records) == isinstance(error, ValueError)


async def cancel_itself() -> None:
    """Waits for a task that somebody else cancels."""
    task = asyncio.ensure_future(asyncio.sleep(9))
    asyncio.get_running_loop().call_soon(task.cancel)
    await task


async def test_work_that_is_cancelled_by_its_own_task_has_failed(
    live: Database, caplog: pytest.LogCaptureFixture
) -> None:
    live.execute("SELECT eskit_lease.group_create(%s, 1)", live.name)
    add(live, "{}")
    fences: list[int] = []
    attempts: list[int] = []

    async def work(partition: Partition) -> None:
        fences.append(partition.fence)
        await cancel_itself()

    async def handle(item: Item, db: Any) -> None:
        attempts.append(item.attempt)
        if item.attempt == 1:
            await cancel_itself()

    async with live.leases() as leases:
        joining = asyncio.ensure_future(leases.join(live.name, work))
        working = asyncio.ensure_future(leases.work(live.name, handle, live.connect))
        await until(lambda: len(fences) > 3 and left(live) == 0)
        joining.cancel()
        working.cancel()
    assert len(fences) == len(set(fences)) < 10
    assert attempts == [1, 2]
    assert any("the work failed" in record.getMessage() for record in caplog.records)


async def test_a_member_leaves_after_an_error_of_the_assignment(live: Database) -> None:
    role = f"r{live.name}"
    live.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    live.execute(f"SELECT eskit_lease.grant_consumer('{role}')")
    live.execute("SELECT eskit_lease.group_create(%s, 2)", live.name)
    dsn = conninfo.make_conninfo(live.dsn, user=role, password="x")
    async with live.leases(dsn) as leases, live.leases() as others:
        member, other = Member(leases), Member(others)
        joining = asyncio.ensure_future(leases.join(live.name, member.serve))
        await until(lambda: member.owned() == {0, 1})
        live.execute(f"REVOKE EXECUTE ON FUNCTION eskit_lease.group_assignment FROM {role}")
        also = asyncio.ensure_future(others.join(live.name, other.serve))
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await joining
        assert live.value("SELECT count(*) FROM eskit_lease.group_members WHERE group_name = %s", live.name) == 1
        await until(lambda: other.owned() == {0, 1})
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await leases.join(live.name, member.serve)
        assert live.value("SELECT count(*) FROM eskit_lease.group_members WHERE group_name = %s", live.name) == 1
        also.cancel()
    live.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


async def test_a_partition_never_begins_under_a_fence_of_a_former_join(live: Database) -> None:
    """The release of the first one was refused, and so was its leave."""
    live.execute("SELECT eskit_lease.group_create(%s, 1)", live.name)
    fences: list[int] = []

    async def work(partition: Partition) -> None:
        fences.append(partition.fence)
        begun.set()
        await partition.cancelled.wait()

    begun = asyncio.Event()
    with consumer(live) as (role, dsn):
        async with live.leases(dsn) as leases:
            for function in ("group_release", "group_leave"):
                live.execute(f"REVOKE EXECUTE ON FUNCTION eskit_lease.{function} FROM {role}")
            for _ in range(2):
                begun.clear()
                joining = asyncio.ensure_future(leases.join(live.name, work))
                await begun.wait()
                joining.cancel()
                await asyncio.wait({joining})
                live.execute(f"SELECT eskit_lease.grant_consumer('{role}')")
    assert fences[0] < fences[1]


async def test_an_assignment_that_fails_is_asked_for_again(
    live: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    live.execute("SELECT eskit_lease.group_create(%s, 1)", live.name)
    members = "SELECT count(*) FROM eskit_lease.group_members WHERE group_name = %s"
    async with live.leases() as leases:
        for is_cancelled in (True, False):
            member = Member(leases)
            with monkeypatch.context() as patched:
                patched.setattr("eskit_lease._group.ASSIGNMENT", "SELECT 1/0 FROM (SELECT %s::text, %s::uuid) x")
                joining = asyncio.ensure_future(leases.join(live.name, member.serve))
                await until(lambda: "zero" in caplog.text)
                caplog.clear()
                assert live.value(members, live.name) == 1
                if is_cancelled:
                    joining.cancel()
                    await asyncio.wait({joining})
                    assert live.value(members, live.name) == 0
        await until(lambda: member.owned() == {0})
        joining.cancel()


async def test_a_group_that_cannot_be_joined(live: Database) -> None:
    async with live.leases() as leases:
        with pytest.raises(psycopg.errors.UndefinedObject):
            await leases.join(f"no {live.name}", Member(leases).serve)
        await leases.close()
        with pytest.raises(Closed):
            await leases.join(live.name, Member(leases).serve)


async def test_a_member_that_is_cut_off_joins_again(live: Database) -> None:
    live.execute("SELECT eskit_lease.group_create(%s, 2)", live.name)
    async with network(live) as (link, dsn), live.leases(dsn) as leases:
        member = Member(leases)
        joining = asyncio.ensure_future(leases.join(live.name, member.serve))
        await until(lambda: member.owned() == {0, 1})
        link.silence()
        await until(lambda: member.owned() == set())
        await asyncio.sleep(TTL)
        link.mend()
        await until(lambda: len(member.begun) == 4)
        joining.cancel()


async def test_a_partition_that_moves_before_its_work_begins_is_released(live: Database) -> None:
    live.execute("SELECT eskit_lease.group_create(%s, 2)", live.name)
    async with live.leases() as leases:
        live.execute("SELECT eskit_lease.group_join(%s, %s)", live.name, leases.session)
        await until(lambda: live.value(OWNED, live.name, leases.name) == 2)
        other = live.value("SELECT session FROM eskit_lease.session_open(%s, '1 min')", f"{live.name} x")
        live.execute("SELECT eskit_lease.group_join(%s, %s)", live.name, other)
        member = Member(leases)
        joining = asyncio.ensure_future(leases.join(live.name, member.serve))
        await until(lambda: live.value(OWNED, live.name, f"{live.name} x") == 1, 10)
        await until(lambda: member.begun)
        assert len(member.begun) == 1
        joining.cancel()
        live.execute("SELECT eskit_lease.session_close(%s)", other)


# ---- items ----


def left(live: Database) -> int:
    return int(live.value("SELECT count(*) FROM eskit_lease.items WHERE queue = %s", live.name))


def add(live: Database, payload: str, count: int = 1, **queue: Any) -> None:
    given = "".join(f", {name} => '{value}'" for name, value in queue.items())
    live.execute(f"SELECT eskit_lease.queue_create(%s, 3, '10 ms'{given})", live.name)
    live.execute("SELECT eskit_lease.item_add(%s, %s) FROM generate_series(1, %s)", live.name, payload, count)


async def test_items_are_handled(live: Database) -> None:
    add(live, '{"a": [1]}', 20)
    at_once, most = 0, 0

    async def handle(item: Item, db: psycopg.AsyncConnection[Any]) -> None:
        nonlocal at_once, most
        assert (item.queue, item.key, item.payload) == (live.name, None, {"a": [1]})
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.02)
        await db.execute("INSERT INTO kit_test VALUES (%s, %s)", (live.name, str(item.id)))
        at_once -= 1

    async with live.leases() as leases:
        working = asyncio.ensure_future(leases.work(live.name, handle, live.connect, concurrency=4))
        await until(lambda: left(live) == 0)
        live.execute("SELECT eskit_lease.item_add(%s, %s)", live.name, '{"a": [1]}')  # news of it comes
        await until(lambda: left(live) == 0)
        await leases.drain(5)
        await working
    assert 1 < most <= 4
    done = "SELECT count(*), count(DISTINCT note) FROM kit_test WHERE test = %s"
    assert live.execute(done, live.name).fetchone() == (21, 21)
    with pytest.raises(ValueError, match="concurrency"):
        await leases.work(live.name, handle, live.connect, concurrency=0)


async def test_a_handler_that_fails_is_tried_again(live: Database) -> None:
    add(live, "{}")
    attempts: list[int] = []

    async def handle(item: Item, db: psycopg.AsyncConnection[Any]) -> None:
        attempts.append(item.attempt)
        await db.execute("INSERT INTO kit_test VALUES (%s, 'x')", (live.name,))
        if item.attempt < 3:
            raise ValueError("told to fail")

    async with live.leases() as leases:
        working = asyncio.ensure_future(leases.work(live.name, handle, live.connect))
        await until(lambda: attempts[1:] and left(live) == 0)
        working.cancel()
    assert attempts == [1, 2, 3]
    assert live.value("SELECT count(*) FROM kit_test WHERE test = %s", live.name) == 1


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("told to fail")


@pytest.mark.parametrize("encoding", ["utf8", "latin1"])
@pytest.mark.parametrize("error", [ValueError("a\0b\ud800\N{SNOWMAN}"), Unspeakable()])
async def test_an_item_whose_error_the_server_refuses(live: Database, error: Exception, encoding: str) -> None:
    add(live, "{}")

    async def handle(item: Item, db: Any) -> None:
        if item.attempt == 1:
            raise error

    async with live.leases(conninfo.make_conninfo(live.dsn, client_encoding=encoding)) as leases:
        working = asyncio.ensure_future(leases.work(live.name, handle, live.connect))
        await until(lambda: left(live) == 0)
        working.cancel()


async def test_a_payload_that_python_refuses(live: Database) -> None:
    add(live, f"[{'9' * 5000}]")
    async with live.leases() as leases:
        working = asyncio.ensure_future(leases.work(live.name, lambda item, db: item.payload, live.connect))
        await until(lambda: live.value("SELECT error FROM eskit_lease.items WHERE queue = %s", live.name))
        working.cancel()


async def test_a_handler_that_rolls_back_has_failed(live: Database, caplog: pytest.LogCaptureFixture) -> None:
    add(live, "{}")

    async def handle(item: Item, db: psycopg.AsyncConnection[Any]) -> None:
        async with db.transaction():  # a savepoint, which is the handler's own
            raise psycopg.Rollback
        if item.attempt == 1:
            raise psycopg.Rollback

    async with live.leases() as leases:
        working = asyncio.ensure_future(leases.work(live.name, handle, live.connect))
        await until(lambda: left(live) == 0)
        working.cancel()
        with pytest.raises(RuntimeError, match="rolled back"):
            async with leases.lead(live.name) as lead, await live.connect() as db, lead.transaction(db):
                raise psycopg.Rollback
    assert sum("rolled back" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize("way", ["before", "after"])
async def test_an_item_whose_commit_is_unknown(live: Database, way: str) -> None:
    add(live, "{}")
    handled = 0

    async def handle(item: Item, db: psycopg.AsyncConnection[Any]) -> None:
        nonlocal handled
        handled += 1
        await db.execute("INSERT INTO kit_test VALUES (%s, 'x')", (live.name,))
        if item.attempt == 1:
            link.on_data = lambda data: way if b"COMMIT" in data else None
        else:
            link.on_data = lambda data: None

    async with network(live) as (link, dsn), live.leases() as leases:
        working = asyncio.ensure_future(leases.work(live.name, handle, lambda: live.connect(dsn)))
        await until(lambda: handled and left(live) == 0)
        working.cancel()
        await asyncio.wait({working})
    assert handled == (1 if way == "after" else 2)
    assert live.value("SELECT count(*) FROM kit_test WHERE test = %s", live.name) == 1


async def test_a_drain_gives_back_what_has_not_begun(live: Database) -> None:
    add(live, "{}", 5)
    pool = asyncio.Semaphore(1)

    @contextlib.asynccontextmanager
    async def connections() -> Any:
        async with pool, await live.connect() as db:
            yield db

    handled, begun = 0, asyncio.Event()

    async def handle(item: Item, db: psycopg.AsyncConnection[Any]) -> None:
        nonlocal handled
        begun.set()
        await asyncio.sleep(0.3)
        handled += 1

    async with live.leases() as leases:
        working = asyncio.ensure_future(leases.work(live.name, handle, connections, concurrency=3))
        await begun.wait()
        await leases.drain(20)
        await working
    assert handled == 1
    states = "SELECT state, attempt FROM eskit_lease.items WHERE queue = %s"
    assert live.execute(states, live.name).fetchall() == [("ready", 0)] * 4


async def test_a_caller_that_is_cancelled_lets_begun_handlers_finish(live: Database) -> None:
    add(live, "{}", 3)
    ends: list[str] = []

    async def handle(item: Item, db: psycopg.AsyncConnection[Any]) -> None:
        try:
            await asyncio.sleep(0.3)
            ends.append("finished")
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    async with live.leases() as leases:
        for cancels, end in ((1, "finished"), (2, "cancelled")):
            working = asyncio.ensure_future(leases.work(live.name, handle, live.connect))
            await asyncio.sleep(0.15)
            for _ in range(cancels):
                working.cancel()
                await asyncio.sleep(0.01)
            with pytest.raises(asyncio.CancelledError):
                await working
            assert ends == [end]
            ends.clear()
        assert left(live) == 2


async def test_no_connection_for_an_item(live: Database, caplog: pytest.LogCaptureFixture) -> None:
    add(live, "{}")
    handled = asyncio.Event()
    tries = 0

    async def connections() -> Any:
        nonlocal tries
        tries += 1
        if tries < 4:
            raise OSError("the pool is empty")
        return await live.connect()

    async def handle(item: Item, db: Any) -> None:
        assert item.attempt == 1
        handled.set()

    async with live.leases() as leases:
        working = asyncio.ensure_future(leases.work(live.name, handle, connections))
        await handled.wait()
        working.cancel()
        await asyncio.wait({working})
    assert 1 <= sum("the pool is empty" in record.getMessage() for record in caplog.records) < tries


@pytest.mark.parametrize("role", ["owner", "consumer"])
async def test_a_claim_whose_answer_is_lost(live: Database, role: str, caplog: pytest.LogCaptureFixture) -> None:
    """The items come back: as the view tells which they are, or with the end of the session."""
    add(live, "{}", 2)
    dsn = live.dsn
    if role == "consumer":
        live.execute(f"CREATE ROLE r{live.name} LOGIN PASSWORD 'x'")
        live.execute(f"SELECT eskit_lease.grant_consumer('r{live.name}')")
        dsn = conninfo.make_conninfo(dsn, user=f"r{live.name}", password="x")
    handled: set[int] = set()

    async def handle(item: Item, db: Any) -> None:
        handled.add(item.id)

    database = Database(dsn)
    lost = 0

    def look(data: bytes) -> str | None:
        nonlocal lost
        lost += b"item_claim" in data and lost == 0
        return "after" if lost == 1 and b"item_claim" in data else None

    async with network(database) as (link, through), live.leases(through, ttl=5) as leases:
        link.on_data = look
        working = asyncio.ensure_future(leases.work(live.name, handle, live.connect, concurrency=2))
        await until(lambda: lost)
        link.on_data = lambda data: None
        await until(lambda: len(handled) == 2)
        working.cancel()
    told = [record.getMessage() for record in caplog.records]
    assert any("a claim had no answer" in text for text in told) == (role == "consumer")
    assert not any("another process" in text for text in told)  # it was this one
    database.db.close()
    live.execute("SELECT eskit_lease.queue_drop(%s, true)", live.name)
    if role == "consumer":
        live.execute(f"DROP OWNED BY r{live.name}; DROP ROLE r{live.name}")


async def test_a_worker_that_stops_after_a_claim_without_an_answer(live: Database) -> None:
    add(live, "{}", 2)
    lost = 0

    def look(data: bytes) -> str | None:
        nonlocal lost
        if b"item_claim" not in data:
            return None
        lost += 1
        working.cancel()
        return "after"

    async with network(live) as (link, dsn), live.leases(dsn) as leases:
        link.on_data = look
        working = asyncio.ensure_future(leases.work(live.name, lambda item, db: asyncio.sleep(0), live.connect))
        with pytest.raises(asyncio.CancelledError):
            await working
        states = "SELECT state, attempt FROM eskit_lease.items WHERE queue = %s"
        assert live.execute(states, live.name).fetchall() == [("ready", 0)] * 2
        assert leases.state == "trusted"
    assert lost == 1


async def test_an_idle_connection_that_the_server_closes_costs_nothing(
    live: Database, caplog: pytest.LogCaptureFixture
) -> None:
    add(live, "{}")
    role = f"r{live.name}"
    live.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    live.execute(f"SELECT eskit_lease.grant_consumer('{role}')")
    states: list[str] = []
    dsn = conninfo.make_conninfo(live.dsn, user=role, password="x")
    async with live.leases(dsn, on_state=states.append) as leases:
        working = asyncio.ensure_future(leases.work(live.name, lambda item, db: asyncio.sleep(0), live.connect))
        await until(lambda: left(live) == 0)
        for _ in range(3):
            await asyncio.sleep(0.1)
            idle = "state = 'idle' AND usename = %s"
            live.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {idle}", role)
            await asyncio.sleep(0.1)
            live.execute("SELECT eskit_lease.item_add(%s, '{}')", live.name)
            await until(lambda: left(live) == 0)
        working.cancel()
        assert states == ["trusted"]
    assert not caplog.records
    live.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


async def test_a_queue_with_partitions_waits_for_its_member(live: Database) -> None:
    live.execute("SELECT eskit_lease.group_create(%s, 2)", f"g{live.name}")
    add(live, "{}", 4, group_name=f"g{live.name}")
    async with live.leases() as leases:
        working = asyncio.ensure_future(leases.work(live.name, lambda item, db: asyncio.sleep(0), live.connect))
        await asyncio.sleep(0.3)
        assert left(live) == 4
        joining = asyncio.ensure_future(leases.join(f"g{live.name}", Member(leases).serve))
        await until(lambda: left(live) == 0)
        await leases.drain(5)
        await asyncio.gather(working, joining)


async def test_a_queue_that_is_not_there(live: Database) -> None:
    async with live.leases() as leases:
        with pytest.raises(psycopg.errors.UndefinedObject):
            await leases.work(f"no {live.name}", lambda item, db: asyncio.sleep(0), live.connect)


# ---- keys ----


async def test_a_key_runs_once(live: Database) -> None:
    runs: list[Execution] = []
    told_other = asyncio.Event()

    async def effect(execution: Execution) -> dict[str, int]:
        runs.append(execution)
        await told_other.wait()
        return {"answer": 42}

    async with live.leases() as one, live.leases() as other:
        first = asyncio.ensure_future(one.once(live.name, effect))
        second = asyncio.ensure_future(one.once(live.name, effect))  # follows the first
        await until(lambda: runs)
        assert (await other.once(live.name, effect)).state == "running"
        told_other.set()
        told, again = await first, await second
        assert (told.first, told.state, told.result) == (True, "done", {"answer": 42})
        assert (again.first, again.state, again.result) == (False, "done", {"answer": 42})
    assert len(runs) == 1
    assert runs[0].key == live.name


async def test_a_function_that_raises_runs_again(live: Database) -> None:
    async def fail(_: Execution) -> None:
        raise ValueError("told to fail")

    async def nothing(_: Execution) -> None:
        pass

    async with live.leases() as leases:
        with pytest.raises(ValueError, match="told"):
            await leases.once(live.name, fail)
        told = await leases.once(live.name, nothing)
        assert (told.first, told.state, told.result) == (True, "done", None)


async def test_a_function_that_is_interrupted_is_in_doubt(live: Database) -> None:
    async def sleep(_: Execution) -> None:
        await asyncio.sleep(5)

    async with live.leases() as leases:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(leases.once(live.name, sleep), 0.2)
        assert (await leases.once(live.name, sleep)).state == "failed"
        key = f"{live.name} again"
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(leases.once(key, sleep, retry_in_doubt=True), 0.2)
        assert (await leases.once(key, lambda _: asyncio.sleep(0), retry_in_doubt=True)).first


async def test_a_result_that_json_has_not(live: Database) -> None:
    runs = 0

    async def wrong(_: Execution) -> object:
        nonlocal runs
        runs += 1
        return object()

    async with live.leases() as leases:
        with pytest.raises(TypeError):
            await leases.once(live.name, wrong)
        assert (await leases.once(live.name, wrong)).state == "failed"
    assert runs == 1


@pytest.mark.parametrize("result", [{"a": "b\0"}, float("nan"), "\ud800"])
async def test_a_result_that_the_server_refuses(live: Database, result: object) -> None:
    fences: list[int] = []

    async def effect(execution: Execution) -> object:
        fences.append(execution.fence)
        return result

    async with live.leases() as leases:
        with pytest.raises(psycopg.DataError):
            await leases.once(live.name, effect)
        assert (await leases.once(live.name, effect)).state == "failed"
    assert len(fences) == 1


async def test_a_run_whose_end_cannot_be_stored_does_not_begin_again(live: Database) -> None:
    role, runs = f"r{live.name}", 0
    live.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    live.execute(f"SELECT eskit_lease.grant_consumer('{role}')")
    fail = "EXECUTE ON FUNCTION eskit_lease.execution_fail"

    async def effect(_: Execution) -> None:
        nonlocal runs
        runs += 1
        raise ValueError("told to fail")

    async with live.leases(conninfo.make_conninfo(live.dsn, user=role, password="x")) as leases:
        live.execute(f"REVOKE {fail} FROM {role}")
        with pytest.raises(ValueError, match="told"):
            await leases.once(live.name, effect)
        with pytest.raises(Refused):
            await leases.once(live.name, effect)
        live.execute(f"GRANT {fail} TO {role}")
        assert (await leases.once(live.name, effect)).state == "failed"
    assert runs == 1
    live.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


BAD_TEXTS = ["a\0", "b\ud800", "\N{SNOWMAN}"]  # the last for a connection in Latin 1


@pytest.mark.parametrize("text", BAD_TEXTS)
async def test_a_run_that_fails_with_a_text_that_the_server_refuses(live: Database, text: str) -> None:
    async def fail(_: Execution) -> None:
        raise ValueError(text)

    async with live.leases(conninfo.make_conninfo(live.dsn, client_encoding="latin1")) as leases:
        with pytest.raises(ValueError, match=text):
            await leases.once(live.name, fail)
        assert (await leases.once(live.name, lambda _: asyncio.sleep(0))).first


async def test_a_run_that_is_over_before_it_finishes(live: Database) -> None:
    async def resolved(execution: Execution) -> None:
        live.execute("SELECT eskit_lease.session_close(%s)", execution.session)
        await asyncio.shield(asyncio.sleep(0.05))

    async with live.leases() as leases:
        with pytest.raises((Lost, Refused)):
            await leases.once(live.name, resolved)


async def test_callers_that_stop_waiting_leave_no_run(live: Database) -> None:
    async with live.leases() as leases:
        for pause in range(12):
            asking = asyncio.ensure_future(leases.once(live.name, lambda _: asyncio.sleep(0, "done")))
            await asyncio.sleep(pause / 1000)
            asking.cancel()
            await asyncio.wait({asking})
        told = await leases.once(live.name, lambda _: asyncio.sleep(0, "done"))
        assert told.state in ("done", "failed")  # failed: cancelled while the function ran


async def test_the_log_tells_each_thing_once(live: Database, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "eskit_lease")
    async with network(live) as (link, dsn), live.leases(dsn) as leases:
        link.silence()
        await until(lambda: leases.state == "doubting")
        await asyncio.sleep(TTL)
        link.mend()
        await until(lambda: leases.state == "trusted")
    told = [record.getMessage().removeprefix(f"{leases.name}: ") for record in caplog.records]
    assert len(told) < 10, told
    assert all("\n" not in line for line in told)
