"""Partitions, work items and run-once keys: each event once and in order, each item once, each key once."""

import random
import signal
import time

import pytest
from conftest import wait_until
from kit import TTL, LosingLink, judge_applied

PARTS, LAST = 6, 150


def join(programs, **given):
    for program in programs:
        program.do("join", id="g", group="g", **given)


def judge_partitions(programs, paused=()):
    """No partition has two tasks at a time: the next begins after the one before was cancelled, or has ended."""
    tasks = {}
    for program in programs:
        for started in program.all("started"):
            over = [
                told["at"]
                for event in ("cancelled", "ended")
                for told in program.all(event, partition=started["partition"], fence=started["fence"])
            ]
            tasks.setdefault(started["partition"], []).append((started["fence"], started["at"], min(over, default=None), program))
    for partition, found in tasks.items():
        found.sort(key=lambda task: task[0])
        for (fence, _, over, program), (_, begun, _, other) in zip(found, found[1:], strict=False):
            if program in paused or program.process.poll() not in (None, 0):
                continue
            assert over is not None and over < begun + TTL / 10, f"partition {partition}: {program.name} ({fence}) beside {other.name}"
    return tasks


def test_each_event_is_applied_once_and_in_order(world):
    """While members come, drain, are stopped and killed."""
    world.add_events(PARTS, LAST)
    programs = world.several(3)
    join(programs)
    for program in programs[:2]:
        program.wait("applied")
    newcomer = world.start()
    join([newcomer])
    newcomer.wait("started")
    programs[0].ask("drain", "drained", seconds=5)
    programs[1].kill()
    with programs[2].stopped():
        time.sleep(1.5 * TTL)
    judge_applied(world.conn, PARTS, LAST)
    judge_partitions([*programs, newcomer], [programs[2]])


def test_a_partition_goes_to_a_newcomer_only_after_its_task_has_ended(world):
    """The tasks sleep most of the time, so only the library can end them in time."""
    world.add_events(PARTS, 30)
    programs = [world.start() for _ in range(3)]
    for program in programs:
        join([program], every=TTL / 4)
        program.wait("started")
    judge_applied(world.conn, PARTS, 30)
    judge_partitions(programs)
    for program in programs:
        program.ask("stop", "stopped", id="g")
    assert world.has("SELECT count(*) FROM eskit_lease.group_members") == 0
    assert world.has("SELECT count(*) FROM eskit_lease.group_partitions WHERE owner IS NOT NULL") == 0


@pytest.mark.parametrize("way", ["before", "after"])
def test_an_unknown_commit_applies_no_event_twice(world, way):
    world.add_events(2, LAST)
    link = world.link(kind=LosingLink)
    programs = [world.start(work=world.url(link.port)) for _ in range(2)]
    join(programs, every=TTL / 30)
    for _ in range(10):
        lost = link.lost
        link.lose = way
        wait_until(lambda: link.lost > lost or world.has("SELECT count(*) FROM kit_applied") >= 2 * LAST)  # noqa: B023
        time.sleep(random.uniform(0, TTL / 5))
        link.let_go()
    judge_applied(world.conn, 2, LAST)
    assert sum(len(program.all("unsure")) for program in programs) >= 1
    judge_partitions(programs)


def test_each_item_is_done_once(world):
    """Some handlers fail at first. One program drains, one is killed, and one is stopped beyond its TTL."""
    world.conn.execute("SELECT eskit_lease.queue_create('q', 5, '10 ms')")
    add = "SELECT eskit_lease.item_add('q', jsonb_build_object('fail', (n % 10 = 0)::int, 'seconds', 0.01)) FROM generate_series(1, 300) AS n"
    world.conn.execute(add)
    programs = world.several(4)
    for program in programs:
        program.do("work", id="w", queue="q", concurrency=4)
    for program in programs[:3]:
        program.wait("handled")
    programs[0].ask("drain", "drained", seconds=5)
    programs[1].kill()
    with programs[2].stopped():
        time.sleep(1.5 * TTL)
    wait_until(lambda: world.has("SELECT count(*) FROM eskit_lease.items") == 0, pause=0.1)
    assert world.has("SELECT count(*) FROM eskit_lease.dead_items") == 0
    assert world.conn.execute("SELECT count(*), count(DISTINCT item) FROM kit_done").fetchone() == (300, 300)
    assert any(program.all("failed") for program in programs)


def test_items_are_done_once_over_unknown_commits(world):
    world.conn.execute("SELECT eskit_lease.queue_create('q', 50, '10 ms')")
    world.conn.execute("SELECT eskit_lease.item_add('q', '{\"seconds\": 0.01}') FROM generate_series(1, 100)")
    link = world.link(kind=LosingLink)
    programs = [world.start(work=world.url(link.port)) for _ in range(2)]
    for program in programs:
        program.do("work", id="w", queue="q", concurrency=2)
    left = "SELECT count(*) FROM eskit_lease.items"
    for way in ("before", "after") * 2:
        lost = link.lost
        link.lose = way
        wait_until(lambda: link.lost > lost or world.has(left) == 0)  # noqa: B023
        time.sleep(random.uniform(0, TTL / 5))
        link.let_go()
    wait_until(lambda: world.has(left) == 0, pause=0.1)
    assert world.conn.execute("SELECT count(*), count(DISTINCT item) FROM kit_done").fetchone() == (100, 100)


def test_a_drain_gives_back_what_has_not_begun(alone):
    alone.conn.execute("SELECT eskit_lease.queue_create('q')")
    alone.conn.execute("SELECT eskit_lease.item_add('q', '{\"seconds\": 0.5}') FROM generate_series(1, 20)")
    program = alone.start()
    program.do("work", id="w", queue="q", concurrency=2)
    program.wait("handled")
    program.ask("drain", "drained", seconds=10)
    assert alone.has("SELECT count(*) FROM eskit_lease.items WHERE state <> 'ready'") == 0
    assert alone.has("SELECT count(*) FROM kit_done") + alone.has("SELECT count(*) FROM eskit_lease.items") == 20
    program.end()


def test_a_key_runs_once(world):
    programs = world.several(3)
    since = [program.do("once", id="o", key="k", seconds=0.3) for program in programs]
    told = [program.wait("once", before, id="o") for program, before in zip(programs, since, strict=True)]
    assert sum(each["first"] for each in told) == 1
    assert world.has("SELECT count(*) FROM kit_once") == 1
    later = programs[0].ask("once", "once", id="p", key="k", seconds=0)
    assert not later["first"] and later["state"] == "done" and later["result"]["by"] in [program.name for program in programs]


def test_a_key_that_fails_runs_again(alone):
    program = alone.start()
    program.ask("once", "once", id="o", key="k", seconds=0, fail=True)
    again = program.ask("once", "once", id="p", key="k", seconds=0)
    assert again["first"] and again["result"] == {"by": program.name}
    assert alone.has("SELECT count(*) FROM kit_once") in (1, 2)


@pytest.mark.parametrize("how", ["term", "end"])
def test_a_program_ends_within_its_bound(alone, how):
    """Whatever it does: leads, owns partitions, works; even if the network is silent."""
    link = alone.link()
    alone.add_events(2, LAST)
    alone.conn.execute("SELECT eskit_lease.queue_create('q')")
    for silent in (False, True):
        program = alone.start(alone.url(link.port), work=alone.url())
        program.do("lead", id="x", name="x")
        program.wait("granted")
        join([program])
        program.do("work", id="w", queue="q", concurrency=2)
        program.wait("applied") if not silent else program.wait("started")
        if silent:
            link.cut()
        began = time.monotonic()
        if how == "term":
            program.signal(signal.SIGTERM)
        else:
            program.process.stdin.close()
        assert program.process.wait(10 + 4 * TTL) == 0
        assert silent or time.monotonic() - began < 10
        link.mend()
    wait_until(lambda: alone.sessions() == 0)
