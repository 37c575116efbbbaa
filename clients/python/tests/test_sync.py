"""The verbs for programs without asyncio, on a server."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from conftest import TTL, Database

from eskit_lease.sync import Closed, Execution, Item, Leases, Lost, Partition, Refused


def until(condition: Any, timeout: float = 20) -> Any:
    deadline = time.monotonic() + timeout
    while not (result := condition()):
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.01)
    return result


@contextlib.contextmanager
def thread(function: Any, *args: Any) -> Iterator[list[Any]]:
    """Calls a function in a thread, and gives a list that will have its result or error. Waits for the end."""
    told: list[Any] = []

    def call() -> None:
        try:
            told.append(function(*args))
        except Exception as error:
            told.append(error)

    running = threading.Thread(target=call, daemon=True)
    running.start()
    yield told
    running.join(20)
    assert told, "a thread hangs"


def lead_once(leases: Leases, name: str) -> int:
    with leases.lead(name, timeout=20) as lead:
        return lead.fence


def test_a_transaction_that_is_rolled_back_is_no_success(live: Database) -> None:
    with Leases(live.dsn, ttl=TTL) as leases, psycopg.connect(live.dsn) as db:
        with pytest.raises(RuntimeError, match="rolled back"), leases.lead(live.name) as lead, lead.transaction(db):
            raise psycopg.Rollback
        live.execute("SELECT eskit_lease.queue_create(%s, 3, '10 ms')", live.name)
        live.execute("SELECT eskit_lease.item_add(%s, '{}')", live.name)
        attempts: list[int] = []

        def handle(item: Item, tx: Any) -> None:
            attempts.append(item.attempt)
            if item.attempt == 1:
                raise psycopg.Rollback

        with thread(leases.work, live.name, handle, lambda: psycopg.connect(live.dsn)):
            until(lambda: live.value("SELECT count(*) FROM eskit_lease.items WHERE queue = %s", live.name) == 0)
            leases.drain(5)
        assert attempts == [1, 2]


def test_a_leader_writes_under_its_fence(live: Database) -> None:
    states: list[str] = []
    with Leases(live.dsn, ttl=TTL, on_state=states.append) as leases, psycopg.connect(live.dsn) as db:
        with leases.lead(live.name) as lead:
            assert lead.trusted
            assert (lead.name, lead.session) == (live.name, leases.session)
            with lead.transaction(db):
                db.execute("INSERT INTO kit_test VALUES (%s, 'x')", (live.name,))
            while lead.news(0.1):  # of the grant, for instance
                pass
        assert lead.ended
        assert not lead.cancelled.is_set()
        with pytest.raises(Lost):
            lead.guard(db)
        with leases.try_lead(live.name) as again, leases.try_lead(live.name) as none:
            assert again is not None
            assert none is None
    assert states == ["trusted", "draining", "closed"]
    with pytest.raises(Closed):
        lead_once(leases, live.name)
    leases.close()
    leases.drain()
    with pytest.raises(RuntimeError):
        leases.open()


def test_a_time_limit_gives_the_place_up(live: Database) -> None:
    waiters = "SELECT count(*) FROM eskit_lease.waiters WHERE resource = %s"
    with Leases(live.dsn, ttl=TTL) as one, Leases(live.dsn, ttl=TTL) as other:
        with one.lead(live.name):
            with pytest.raises(TimeoutError), other.lead(live.name, timeout=0.2):
                pass
            until(lambda: live.value(waiters, live.name) == 0)
        for pause in range(12):
            with contextlib.suppress(TimeoutError), other.lead(live.name, timeout=pause / 1000):
                pass
            assert lead_once(one, live.name)


def test_a_lease_taken_by_force(live: Database) -> None:
    """The scope is cancelled, and another keeper gets the lease, whether the block has ended or not."""
    with Leases(live.dsn, ttl=TTL) as one, Leases(live.dsn, ttl=TTL) as other, psycopg.connect(live.dsn) as db:
        for _ in range(5):
            with one.lead(live.name) as lead:
                live.force(live.name)
                assert lead.cancelled.wait(TTL)
                with pytest.raises(Lost):
                    lead.guard(db)
                assert lead.news(0)
            with other.lead(live.name, timeout=5) as next_lead:
                assert next_lead.fence > lead.fence
                with thread(lead_once, one, live.name) as told:
                    time.sleep(0.05)
                    live.force(live.name)
                    assert next_lead.cancelled.wait(TTL)
            assert told[0] > next_lead.fence


def test_threads_share_a_keeper(live: Database) -> None:
    with Leases(live.dsn, ttl=TTL) as leases, contextlib.ExitStack() as stack:
        told = [stack.enter_context(thread(lead_once, leases, f"{live.name} {number % 3}")) for number in range(9)]
        until(lambda: all(told))
    assert len({fence for (fence,) in told}) == 9


def test_the_end_of_a_session_cancels(live: Database) -> None:
    with Leases(live.dsn, ttl=TTL) as leases, leases.lead(live.name) as lead:
        live.execute("SELECT eskit_lease.session_close(%s)", lead.session)
        assert lead.cancelled.wait(TTL)


def test_partitions(live: Database) -> None:
    live.execute("SELECT eskit_lease.group_create(%s, 2)", live.name)
    done: set[int] = set()

    def work(partition: Partition) -> None:
        with psycopg.connect(live.dsn) as db:
            position = partition.position(db)
            assert partition.commit(db, position + 1, position)
            db.commit()
            with pytest.raises(Refused):
                partition.commit(db, position + 9, position + 5)
        done.add(partition.partition)
        while not partition.draining:
            partition.news()

    with Leases(live.dsn, ttl=TTL) as leases:
        with thread(leases.join, live.name, work) as told:
            until(lambda: done == {0, 1})
            leases.drain(5)
        assert told == [None]
    assert live.value("SELECT count(*) FROM eskit_lease.group_members WHERE group_name = %s", live.name) == 0


@pytest.mark.parametrize("error", [ValueError("told"), SystemExit(), StopIteration()])
def test_work_that_raises_begins_again(live: Database, error: BaseException) -> None:
    live.execute("SELECT eskit_lease.group_create(%s, 1)", live.name)
    fences: list[int] = []

    def work(partition: Partition) -> None:
        fences.append(partition.fence)
        raise error

    with Leases(live.dsn, ttl=TTL) as leases, thread(leases.join, live.name, work) as told:
        until(lambda: len(fences) > 2)
        leases.close()
    assert isinstance(told[0], (Closed, type(None)))
    assert fences == sorted(set(fences))


def test_items(live: Database) -> None:
    live.execute("SELECT eskit_lease.queue_create(%s, 3, '10 ms')", live.name)
    live.execute("""SELECT eskit_lease.item_add(%s, '{"a": 1}') FROM generate_series(1, 10)""", live.name)

    def handle(item: Item, db: psycopg.Connection[Any]) -> None:
        assert item.payload == {"a": 1}
        db.execute("INSERT INTO kit_test VALUES (%s, %s)", (live.name, str(item.id)))
        if item.attempt == 1 and item.id % 3 == 0:
            raise ValueError("told to fail")

    left = "SELECT count(*) FROM eskit_lease.items WHERE queue = %s"
    with Leases(live.dsn, ttl=TTL) as leases:
        with thread(lambda: leases.work(live.name, handle, lambda: psycopg.connect(live.dsn), concurrency=3)) as told:
            until(lambda: live.value(left, live.name) == 0)
            leases.drain(5)
        assert told == [None]
    done = "SELECT count(*), count(DISTINCT note) FROM kit_test WHERE test = %s"
    assert live.execute(done, live.name).fetchone() == (10, 10)


def test_keys(live: Database) -> None:
    def effect(execution: Execution) -> dict[str, str]:
        assert execution.trusted
        return {"key": execution.key}

    def fail(_: Execution) -> None:
        raise ValueError("told to fail")

    with Leases(live.dsn, ttl=TTL) as leases:
        with pytest.raises(ValueError, match="told"):
            leases.once(live.name, fail)
        first, again = leases.once(live.name, effect), leases.once(live.name, effect)
    assert (first.first, first.state, first.result) == (True, "done", {"key": live.name})
    assert (again.first, again.state, again.result) == (False, "done", {"key": live.name})


def test_a_close_by_another_thread(live: Database) -> None:
    """It ends what waits, within the TTL, whatever the work does."""
    group = f"{live.name} g"
    live.execute("SELECT eskit_lease.group_create(%s, 1)", group)
    with Leases(live.dsn, ttl=TTL) as leases, Leases(live.dsn, ttl=TTL) as other, other.lead(live.name):
        stubborn = threading.Event()
        with (
            thread(lead_once, leases, live.name) as waiting,
            thread(leases.join, group, lambda _: stubborn.wait(9)) as joined,
        ):
            with leases.lead(f"{live.name} x") as lead:
                began = time.monotonic()
                leases.close()
                assert time.monotonic() - began < TTL + 3
                assert lead.cancelled.is_set()
                assert lead.news()
        stubborn.set()
        assert isinstance(waiting[0], Closed)
        assert isinstance(joined[0], (Closed, type(None)))


def test_the_keepers_thread_does_not_wait_for_itself(live: Database) -> None:
    told: list[Exception] = []

    def on_state(_: str) -> None:
        try:
            leases.close()
        except RuntimeError as error:
            told.append(error)

    leases = Leases(live.dsn, ttl=TTL, on_state=on_state)
    with leases:
        pass
    assert told


PROGRAM = """
import faulthandler, os, sys
faulthandler.dump_traceback_later(30, exit=True)
from eskit_lease.sync import Closed, Leases
leases = Leases(os.environ["DATABASE_URL"], ttl=2)
with leases:
    leases.drain_on_signals(5)
    try:
        while True:
            with leases.lead(sys.argv[1]) as lead:
                print("leads", flush=True)
                while not lead.draining:
                    lead.news()
                print("drains", flush=True)
    except Closed:
        print("closed", flush=True)
"""
ASYNC_PROGRAM = """
import asyncio, faulthandler, os, sys
faulthandler.dump_traceback_later(30, exit=True)
from eskit_lease import Closed, Leases
async def main():
    async with Leases(os.environ["DATABASE_URL"], ttl=2) as leases:
        leases.drain_on_signals(5)
        try:
            while True:
                async with leases.lead(sys.argv[1]) as lead:
                    print("leads", flush=True)
                    while not lead.draining:
                        await lead.news()
                    print("drains", flush=True)
        except Closed:
            print("closed", flush=True)
asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
@pytest.mark.parametrize("program", [PROGRAM, ASYNC_PROGRAM], ids=["sync", "async"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains(live: Database, program: str, number: signal.Signals) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "DATABASE_URL": live.dsn}
    with subprocess.Popen(
        [sys.executable, "-c", program, live.name], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "leads\n"
        process.send_signal(number)
        assert process.stdout.read() == "drains\nclosed\n"
        assert process.wait(5) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
def test_an_interrupt_while_it_waits(live: Database) -> None:
    """KeyboardInterrupt reaches the main thread, and the place in line is given up."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what is in the background without it
    with Leases(live.dsn, ttl=TTL) as one, Leases(live.dsn, ttl=TTL) as other, other.lead(live.name):
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt), one.lead(live.name):
            pass
        until(lambda: live.value("SELECT count(*) FROM eskit_lease.waiters WHERE resource = %s", live.name) == 0)
