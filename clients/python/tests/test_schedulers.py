"""Fleets of APScheduler, Celery beat and buses of pyfly's kind: processes that are killed and drained."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import Database

TTL = 2
LEADER = "SELECT consumer FROM eskit_lease.leases WHERE resource = %s AND state = 'held'"
RUNS = "SELECT note, count(*) FROM kit_test WHERE test = %s GROUP BY note"

APSCHEDULER = """
import os, psycopg
from apscheduler.events import EVENT_JOB_EXECUTED
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from eskit_lease.apscheduler import Fleet
from eskit_lease.sync import Leases

def executed(event):
    with connect() as db:
        db.execute("INSERT INTO kit_test VALUES (%s, %s)", (os.environ["NAME"], str(event.scheduled_run_time)))

def connect():
    return psycopg.connect(os.environ["DATABASE_URL"])

with Leases(os.environ["DATABASE_URL"], name=os.environ["CONSUMER"], ttl=2) as leases:
    leases.drain_on_signals(5)
    fleet = Fleet(leases, os.environ["NAME"], connect)
    scheduler = BackgroundScheduler(executors={"default": fleet.executor(ThreadPoolExecutor(2))})
    # A process that did not know what others have run would run all of the last half minute anew.
    scheduler.add_job(print, "cron", second="*", id="tick", misfire_grace_time=30, coalesce=False)
    scheduler.add_listener(executed, EVENT_JOB_EXECUTED)
    fleet.run(scheduler)
"""

# A schedule that cannot be recorded for a while: 4 s, or until the process is told to end.
REFUSED = """
import logging, os, psycopg, threading, time
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.executors.pool import ThreadPoolExecutor
from eskit_lease.apscheduler import Fleet
from eskit_lease.sync import Leases

class Handler(logging.Handler):
    def emit(self, record):
        told.append(record.getMessage())

def connect():
    global connections
    connections += 1
    return psycopg.connect(dsn, options=options)

told, connections, options = [], 0, "-c default_transaction_read_only=on"
dsn = os.environ["DATABASE_URL"]
logging.getLogger("eskit_lease").addHandler(Handler())
with Leases(dsn, ttl=2) as leases:
    fleet = Fleet(leases, os.environ["NAME"], connect)
    scheduler = BackgroundScheduler(executors={"default": fleet.executor(ThreadPoolExecutor(2))})
    scheduler.add_job(lambda: told.append("ran"), "interval", seconds=1, id="tick", misfire_grace_time=30)
    running = threading.Thread(target=fleet.run, args=(scheduler,))
    running.start()
    time.sleep(5)
    assert running.is_alive()
    assert connections < 12, connections  # 0.2, 0.4, 0.8, 1.6 and 3.2 s, and the first
    options = ""
    while "ran" not in told:
        time.sleep(0.1)
    options = "-c default_transaction_read_only=on"
    time.sleep(4)
    began = time.monotonic()
    leases.drain(5)
    running.join(5)
    assert not running.is_alive()
    assert time.monotonic() - began < 2
assert 0 < sum("read-only" in text for text in told) < 4, told
"""

CELERY = """
import math, os, sys, psycopg
from celery import Celery
from celery.schedules import BaseSchedule

class Seconds(BaseSchedule):  # what crontab is for minutes
    def is_due(self, last_run_at):
        now = self.now().timestamp()
        is_due = math.floor(now) > math.floor(last_run_at.timestamp())
        if is_due:
            fired.append(math.floor(now))
        return is_due, 1 - now % 1

class App(Celery):
    def send_task(self, name, *args, **given):
        with psycopg.connect(os.environ["DATABASE_URL"]) as db:
            db.execute("INSERT INTO kit_test VALUES (%s, %s)", (os.environ["NAME"], str(fired[-1])))

fired = []
app = App(broker="memory://", set_as_current=False)
app.conf.update(eskit_lease_name=os.environ["NAME"], eskit_lease_ttl=2, beat_max_loop_interval=1)
app.conf.beat_schedule = {"tick": {"task": "tick", "schedule": Seconds()}}
app.start(["beat", "-S", "eskit_lease.celery:Scheduler", "--pidfile", "", "--logfile", os.devnull])
"""

PYFLY = """
import asyncio, os, psycopg
from eskit_lease import Leases
from eskit_lease.pyfly import drain_group

async def connect():
    return await psycopg.AsyncConnection.connect(os.environ["DATABASE_URL"], autocommit=True)

async def batch(db):
    name = os.environ["NAME"]
    rows = await db.execute(
        "SELECT id FROM kit_outbox o, kit_offsets d WHERE o.test = %s AND d.test = %s AND id > done ORDER BY 1 LIMIT 3",
        (name, name),
    )
    ids = [id for (id,) in await rows.fetchall()]
    for id in ids:
        async with await connect() as other:  # a delivery is no part of the transaction
            await other.execute("INSERT INTO kit_test VALUES (%s, %s)", (name, str(id)))
        await asyncio.sleep(0.02)
    if ids:
        await db.execute("UPDATE kit_offsets SET done = %s WHERE test = %s", (ids[-1], name))
    return bool(ids)

async def main():
    async with Leases(os.environ["DATABASE_URL"], name=os.environ["CONSUMER"], ttl=2) as leases:
        await drain_group(leases, os.environ["NAME"], batch, connect, poll=0.05)

asyncio.run(main())
"""


class Fleet:
    def __init__(self, live: Database, program: str) -> None:
        self.live, self.program = live, program
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.count = 0

    def start(self) -> None:
        self.count += 1
        consumer = f"{self.live.name}-{self.count}"
        environment = os.environ | {
            "PYTHONPATH": str(Path(__file__).parents[1]),
            "DATABASE_URL": self.live.dsn,
            "NAME": self.live.name,
            "CONSUMER": consumer,
        }
        process = subprocess.Popen([sys.executable, "-c", self.program], stdout=subprocess.DEVNULL, env=environment)
        self.running[f"{process.pid}"] = process
        self.running[consumer] = process

    def leader(self) -> subprocess.Popen[bytes]:
        """Returns the process that leads, by its consumer's name or the process id in it."""
        name = until(lambda: self.live.value(LEADER, self.live.name))
        parts = str(name).split("-")
        return next(self.running[key] for key in (str(name), *parts) if key in self.running)

    def runs(self) -> dict[str, int]:
        return dict(self.live.execute(RUNS, self.live.name).fetchall())

    def run(self) -> None:
        """Waits until the leader has run something."""
        before = len(self.runs())
        until(lambda: len(self.runs()) > before)


def until(condition: Callable[[], Any], timeout: float = 20) -> Any:
    deadline = time.monotonic() + timeout
    while not (result := condition()):
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.002)
    return result


@contextmanager
def fleet(live: Database, program: str) -> Iterator[Fleet]:
    one = Fleet(live, program)
    try:
        yield one
    finally:
        for process in one.running.values():
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("package", "program"), [("apscheduler", APSCHEDULER), ("celery", CELERY)], ids=["apscheduler", "celery"]
)
def test_each_fire_time_runs_once(live: Database, package: str, program: str) -> None:
    pytest.importorskip(package)
    with fleet(live, program) as some:
        for _ in range(3):
            some.start()
        for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGTERM):
            some.run()
            former = some.leader()
            some.run()  # the fire time is over, but no other process has heard of it
            former.send_signal(number)
            began = time.monotonic()
            some.run()
            if number == signal.SIGTERM:
                assert former.wait(10) == 0
                assert time.monotonic() - began < 5
            some.start()
            until(lambda: some.leader() is not former)  # noqa: B023
        some.run()
        runs = some.runs()
    assert set(runs.values()) == {1}, runs


def test_a_schedule_that_cannot_be_recorded(live: Database) -> None:
    """It is tried again after longer pauses, and no drain waits for them."""
    pytest.importorskip("apscheduler")
    from eskit_lease._schedule import CREATE

    live.db.execute(CREATE)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "NAME": live.name}
    subprocess.run([sys.executable, "-c", REFUSED], env=environment, check=True, timeout=50)


def test_a_leader_that_was_stopped_runs_nothing_twice(live: Database) -> None:
    pytest.importorskip("apscheduler")
    with fleet(live, APSCHEDULER) as some:
        for _ in range(2):
            some.start()
        some.run()
        former = some.leader()
        former.send_signal(signal.SIGSTOP)
        until(lambda: some.leader() is not former)
        some.run()
        former.send_signal(signal.SIGCONT)
        time.sleep(2)
        some.run()
        runs = some.runs()
    assert set(runs.values()) == {1}, runs


@pytest.mark.parametrize("kill", [False, True])
def test_buses_share_a_group(live: Database, kill: bool) -> None:
    """Two of them, and one with an advisory lock."""
    live.execute(
        "CREATE TABLE IF NOT EXISTS kit_outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, test text)"
    )
    live.execute("CREATE TABLE IF NOT EXISTS kit_offsets (test text PRIMARY KEY, done bigint)")
    live.execute("INSERT INTO kit_offsets VALUES (%s, 0)", live.name)
    live.execute("SELECT eskit_lease.bridge_create(%s, eskit_lease.group_lock_key(%s))", live.name, live.name)
    lock = "SELECT pg_try_advisory_lock(eskit_lease.group_lock_key(%s))"
    unlock = "SELECT pg_advisory_unlock(eskit_lease.group_lock_key(%s))"
    old = Database(live.dsn)
    by_old = 0

    def drain_by_lock() -> None:
        nonlocal by_old
        if not old.value(lock, live.name):
            return
        done = old.value("SELECT done FROM kit_offsets WHERE test = %s", live.name)
        for (number,) in old.execute(
            "SELECT id FROM kit_outbox WHERE test = %s AND id > %s ORDER BY id", live.name, done
        ):
            old.execute("INSERT INTO kit_test VALUES (%s, %s)", live.name, str(number))
            time.sleep(0.02)
            old.execute("UPDATE kit_offsets SET done = %s WHERE test = %s", number, live.name)
            by_old += 1
        old.execute(unlock, live.name)

    publish = "INSERT INTO kit_outbox (test) VALUES (%s)"
    with fleet(live, PYFLY) as some:
        for _ in range(3):
            live.execute(publish, live.name)
        drain_by_lock()
        assert by_old == 3
        some.start()
        some.start()
        for number in range(17):
            live.execute(publish, live.name)
            drain_by_lock()
            if kill and number == 8:
                until(lambda: sum(some.runs().values()) == 12)
                time.sleep(0.3)  # the batch is committed
                some.leader().kill()
        until(lambda: sum(some.runs().values()) >= 20)
        drain_by_lock()
        time.sleep(0.3)
        runs = some.runs()
    old.db.close()
    assert len(runs) == 20
    assert set(runs.values()) == {1}, runs
    live.execute(
        "SELECT eskit_lease.session_close(session) FROM eskit_lease.sessions WHERE consumer LIKE %s", f"{live.name}%"
    )
    until(lambda: live.value("SELECT count(*) FROM eskit_lease.waiters WHERE resource = %s", live.name) == 0)
    live.execute("SELECT eskit_lease.bridge_drop(%s)", live.name)
