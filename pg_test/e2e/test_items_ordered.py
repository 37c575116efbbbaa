"""Work items in order, end to end: workers that are killed, stopped and fail at random, and an old snapshot."""

import multiprocessing
import os
import random
import signal
import subprocess
import threading
import time
from collections import defaultdict

import psycopg
import pytest
from client import Session, call, rows
from conftest import Server, wait_until
from psycopg.types.json import Jsonb

WORKERS = 8


@pytest.fixture(scope="module")
def ordered_server():
    server = Server("e2e-ordered", "fsync = off", "max_prepared_transactions = 10")
    server.query("CREATE EXTENSION eskit_lease")
    yield server
    server.stop()


def work(dsn, queue, seed):
    """A worker: finishes items with their results, fails some, gives some back, and pauses in between; until it is
    killed."""
    chance = random.Random(seed)
    with psycopg.connect(dsn, autocommit=True) as conn:
        session = Session(conn, f"worker {seed}", ttl="1 s")
        while True:
            try:
                claimed = rows(conn, "item_claim", queue, session.id, chance.randint(1, 5))
                time.sleep(chance.uniform(0, 0.01))
                for item in claimed:
                    luck = chance.random()
                    if luck < 0.1:
                        call(conn, "item_fail", item.id, item.fence, "no luck", f"{chance.randint(0, 30)} ms")
                    elif luck < 0.15:
                        call(conn, "item_unclaim", [item.id], item.fence)
                    else:
                        # Some items are first finished in a transaction that is rolled back.
                        for in_vain in [True, False] if luck > 0.9 else [False]:
                            with conn.transaction(force_rollback=in_vain):
                                conn.execute("INSERT INTO applied (queue, key, item) VALUES (%s, %s, %s)", (queue, item.key, item.id))
                                call(conn, "item_done", [item.id], item.fence)
                if not claimed:
                    session.wait("50 ms")
            except psycopg.DatabaseError as error:
                if error.sqlstate == "LF003":
                    session = Session(conn, f"worker {seed}", ttl="1 s")
                # The session has ended: the item and the result are rolled back.
                elif error.sqlstate != "LF001":
                    raise


def add(dsn, queue, keys, each, seed):
    """Adds items of these keys, a few in each transaction, and rolls some of these back."""
    chance = random.Random(seed)
    with psycopg.connect(dsn, autocommit=True) as conn:
        left = {key: each for key in keys}
        while left:
            some = chance.sample(sorted(left), min(len(left), chance.randint(1, 10)))
            keep = chance.random() < 0.9
            with conn.transaction(force_rollback=not keep):
                for key in some:
                    call(conn, "item_add", queue, Jsonb(None), key)
                time.sleep(chance.uniform(0, 0.005))
            if keep:
                left = {key: n - (key in some) for key, n in left.items() if n > (key in some)}


@pytest.mark.parametrize(("ordering", "keys", "each"), [("key", 50, 20), ("fifo", 4, 40)])
def test_each_once_and_in_order(ordered_server, ordering, keys, each):
    # No unique key: only the claims make each row unique, and in order.
    ordered_server.query("CREATE TABLE IF NOT EXISTS applied (n bigserial, queue text, key text, item bigint)")
    ordered_server.query("SELECT eskit_lease.queue_create(%s, 10000, '0', %s)", ordering, ordering)
    context, seeds, dsn = multiprocessing.get_context("fork"), iter(range(10_000)), ordered_server.dsn()

    def start(what, *args):
        process = context.Process(target=what, args=(dsn, ordering, *args, next(seeds)), daemon=True)
        process.start()
        return process

    names = [f"key {n}" for n in range(keys)]
    crowd = [start(work) for _ in range(WORKERS)]
    # One process adds all items of a key; for fifo, all items.
    adders = [start(add, names[n::2], each) for n in range(2)] if ordering == "key" else [start(add, names, each)]
    one = "key" if ordering == "key" else "queue"
    with ordered_server.connect() as conn:
        left = "SELECT count(*) FROM eskit_lease.items WHERE queue = %s"
        twice = f"SELECT {one} FROM eskit_lease.items WHERE queue = %s AND state IN ('claimed', 'expired') GROUP BY 1 HAVING count(*) > 1"
        try:
            deadline, hurt, stopped = time.monotonic() + 100, 0, {}
            while any(adder.is_alive() for adder in adders) or conn.execute(left, (ordering,)).fetchone()[0] > 0:
                assert time.monotonic() < deadline
                assert conn.execute(twice, (ordering,)).fetchall() == []
                victim, luck = random.randrange(WORKERS), random.random()
                if hurt < 60 and luck < 0.5:
                    os.kill(crowd[victim].pid, signal.SIGKILL)
                    crowd[victim].join()
                    stopped.pop(victim, None)
                    crowd[victim] = start(work)
                elif hurt < 60:
                    # Stops the worker for a moment, or until its session has ended.
                    os.kill(crowd[victim].pid, signal.SIGSTOP)
                    stopped[victim] = time.monotonic() + (1.2 if luck > 0.9 else 0.01)
                hurt += 1
                time.sleep(0.02)
                for victim in [victim for victim, until in stopped.items() if until < time.monotonic()]:
                    os.kill(crowd[victim].pid, signal.SIGCONT)
                    del stopped[victim]
        finally:
            for process in [*crowd, *adders]:
                os.kill(process.pid, signal.SIGKILL) if process.is_alive() else None
                process.join()
        applied = defaultdict(list)
        for key, item in conn.execute("SELECT key, item FROM applied WHERE queue = %s ORDER BY n", (ordering,)).fetchall():
            applied[key if ordering == "key" else "all"].append(item)
        assert sum(len(items) for items in applied.values()) == keys * each
        for key, items in applied.items():
            assert items == sorted(items), key
            assert len(items) == len(set(items)), key
        assert conn.execute("SELECT count(*) FROM eskit_lease._item_heads").fetchone() == (0,)
        assert hurt > 0


def test_an_old_snapshot_does_not_slow_one_key(ordered_server):
    """While an old snapshot is open, a claim's reads of a key do not grow with the thousands of items that the key has
    had."""
    with ordered_server.connect() as conn, ordered_server.connect() as old:
        call(conn, "queue_create", "old", 20, "0", "fifo")
        session = Session(conn, "claimer", ttl="120 s")
        old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT count(*) FROM eskit_lease.items")
        call(conn, "item_add_many", "old", [Jsonb(n) for n in range(3_000)])

        def read_by(count):
            """Makes `count` claims. Returns the blocks read so far, in total."""
            for _ in range(count):
                (item,) = rows(conn, "item_claim", "old", session.id, 1)
                call(conn, "item_done", [item.id], item.fence)
            conn.execute("SELECT pg_stat_force_next_flush()")
            return conn.execute("SELECT sum(pg_stat_get_blocks_fetched(c)) FROM unnest(ARRAY['eskit_lease._items_pkey', 'eskit_lease._item_heads_pkey', 'eskit_lease._item_heads']::regclass[]) AS c").fetchone()[0]

        read_by(20)
        first = -read_by(0) + read_by(100)
        read_by(2_000)
        last = -read_by(0) + read_by(100)
        assert last <= 3 * first, (first, last)
        old.execute("ROLLBACK")


def test_dumped_in_order(ordered_server, tmp_path):
    with ordered_server.connect() as conn:
        call(conn, "queue_create", "dump", 20, "0", "key")
        ids = [call(conn, "item_add", "dump", Jsonb(n), "key") for n in range(3)]
        late = call(conn, "item_add", "dump", Jsonb("late"), "other")
        session = Session(conn, "claimer", ttl="60 s")
        first, other = rows(conn, "item_claim", "dump", session.id, 10)
        call(conn, "item_fail", first.id, first.fence, "to be tried again", "1 hour")
    dump, pg_bin = tmp_path / "dump.sql", os.environ["PG_BIN"]
    subprocess.run([f"{pg_bin}/pg_dump", "-f", str(dump), ordered_server.dsn()], check=True)
    ordered_server.query("CREATE DATABASE ordered_restored")
    subprocess.run([f"{pg_bin}/psql", "-qX", "-v", "ON_ERROR_STOP=1", "-f", str(dump), ordered_server.dsn("ordered_restored")], check=True, stdout=subprocess.DEVNULL)
    with ordered_server.connect("ordered_restored") as conn:
        session = Session(conn, "claimer", ttl="60 s")
        # An item that waits for a retry holds its key, and a claimed item is free.
        assert [item.id for item in rows(conn, "item_claim", "dump", session.id, 10)] == [late]
        conn.execute("UPDATE eskit_lease._later SET due = 0")
        conn.execute("UPDATE eskit_lease._item_heads SET due = 0")
        for id in ids:
            (item,) = rows(conn, "item_claim", "dump", session.id, 10)
            assert item.id == id
            call(conn, "item_done", [item.id], item.fence)


def test_a_crash_keeps_the_order(ordered_server):
    with ordered_server.connect() as conn:
        ordered_server.set(fsync="on")
        call(conn, "queue_create", "crash", 20, "0", "fifo")
        ids = [call(conn, "item_add", "crash", Jsonb(n)) for n in range(3)]
        gone = Session(conn, "gone", ttl="1 s")
        (first,) = rows(conn, "item_claim", "crash", gone.id, 10)
        # A prepared transaction has finished the first item: the next one is claimed only after its commit.
        with ordered_server.connect() as other:
            other.execute("BEGIN")
            call(other, "item_done", [first.id], first.fence)
            other.execute("PREPARE TRANSACTION 'ordered'")
    ordered_server.crash()
    with ordered_server.connect() as conn:
        session = Session(conn, "claimer", ttl="60 s")
        wait_until(lambda: not conn.execute("SELECT FROM eskit_lease.sessions WHERE consumer = 'gone' AND state <> 'expired'").fetchall())
        assert rows(conn, "item_claim", "crash", session.id, 10) == []
        conn.execute("COMMIT PREPARED 'ordered'")
        for id in ids[1:]:
            (item,) = rows(conn, "item_claim", "crash", session.id, 10)
            assert item.id == id
            call(conn, "item_done", [item.id], item.fence)


@pytest.mark.parametrize("ordering", ["key", "fifo"])
@pytest.mark.parametrize("delay", [None, "1 ms"])
def test_a_claim_that_is_rolled_back_lets_no_later_item_pass(ordered_server, background, ordering, delay):
    """Other sessions claim and roll back all the time. Each claim that commits is of the oldest item."""
    queue, count, over = f"undone {ordering} {delay}", 1000, threading.Event()
    ordered_server.query("SELECT eskit_lease.queue_create(%s, 10000, '0', %s)", queue, ordering)

    def undo(name):
        with ordered_server.connect() as conn:
            session = Session(conn, name)
            while not over.is_set():
                with conn.transaction(force_rollback=True):
                    rows(conn, "item_claim", queue, session.id)

    with ordered_server.connect() as conn:
        for number in range(count):
            run_at = delay and conn.execute("SELECT clock_timestamp() + %s::interval", (delay,)).fetchone()[0]
            call(conn, "item_add", queue, Jsonb(number), "k", run_at)
        undoing, session, given = [background(undo, f"{queue} {n}") for n in range(3)], Session(conn, queue), []
        try:
            limit = time.monotonic() + 60
            while len(given) < count:
                assert time.monotonic() < limit
                for item in rows(conn, "item_claim", queue, session.id):
                    given.append(item.payload)
                    call(conn, "item_done", [item.id], item.fence)
                    assert item.payload == len(given) - 1
        finally:
            over.set()
            for each in undoing:
                each.result()
