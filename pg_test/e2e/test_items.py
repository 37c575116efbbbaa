"""Work items end to end: workers that are killed at any instant, crashes, dumps, and old snapshots."""

import multiprocessing
import os
import random
import signal
import subprocess
import time
from collections import Counter

import psycopg
import pytest
from client import Session, call, rows
from conftest import Server, wait_until

WORKERS, ITEMS, KILLS = 50, 1000, 100


@pytest.fixture(scope="module")
def items_server():
    server = Server("e2e-items", "fsync = on", "max_connections = 120", "max_prepared_transactions = 10")
    server.query("CREATE EXTENSION eskit_lease")
    yield server
    server.stop()


def work(dsn, seed):
    """A worker: claims a few items, finishes them with their results, and pauses in between; until it is killed."""
    chance = random.Random(seed)
    with psycopg.connect(dsn, autocommit=True) as conn:
        session = Session(conn, f"worker {seed}", ttl="2 s")
        while True:
            try:
                claimed = rows(conn, "item_claim", "crowd", session.id, chance.randint(1, 5))
                time.sleep(chance.uniform(0, 0.02))
                for item in claimed:
                    with conn.transaction():
                        conn.execute("INSERT INTO results (item, attempt) VALUES (%s, %s)", (item.id, item.attempt))
                        call(conn, "item_done", [item.id], item.fence)
                if not claimed:
                    time.sleep(0.02)
            except psycopg.DatabaseError as error:
                if error.sqlstate == "LF003":
                    session = Session(conn, f"worker {seed}", ttl="2 s")
                elif error.sqlstate not in ("LF001", "55P03"):  # rolled back, together with the result
                    raise


def test_killed_at_random_each_result_once(items_server):
    # No unique key on results: only the claims make each of them unique.
    items_server.query("CREATE TABLE results (item bigint, attempt int, at timestamptz DEFAULT clock_timestamp())")
    items_server.query("SELECT eskit_lease.queue_create('crowd', max_attempts => 1000)")
    context = multiprocessing.get_context("fork")
    seeds = iter(range(10_000))

    def start():
        process = context.Process(target=work, args=(items_server.dsn(), next(seeds)), daemon=True)
        process.start()
        return process

    crowd, killed = [start() for _ in range(WORKERS)], 0
    with items_server.connect() as conn:
        ids = call(conn, "item_add_many", "crowd", [psycopg.types.json.Jsonb(n) for n in range(ITEMS)])
        left = "SELECT count(*) FROM eskit_lease.items WHERE queue = 'crowd'"
        try:
            deadline = time.monotonic() + 100
            while conn.execute(left).fetchone()[0] > 0:
                assert time.monotonic() < deadline
                if killed < KILLS:
                    victim = random.randrange(WORKERS)
                    os.kill(crowd[victim].pid, signal.SIGKILL)
                    crowd[victim].join()
                    crowd[victim] = start()
                    killed += 1
                time.sleep(0.02)
        finally:
            for process in crowd:
                os.kill(process.pid, signal.SIGKILL)
                process.join()
        results = Counter(item for (item,) in conn.execute("SELECT item FROM results").fetchall())
    assert set(results) == set(ids)
    assert set(results.values()) == {1}
    assert killed > 0


def test_a_crash_loses_no_item_and_no_claim(items_server):
    with items_server.connect() as conn:
        call(conn, "queue_create", "crash")
        ids = call(conn, "item_add_many", "crash", [psycopg.types.json.Jsonb(n) for n in range(10)])
        session, gone = Session(conn, "claimer", ttl="60 s"), Session(conn, "gone", ttl="1 s")
        claimed = rows(conn, "item_claim", "crash", session.id, 3)
        rows(conn, "item_claim", "crash", gone.id, 2)
        call(conn, "item_fail", claimed[2].id, claimed[2].fence, "failed", "1 hour")
        # A prepared transaction adds an item and claims another.
        with items_server.connect() as other:
            other.execute("BEGIN")
            late = call(other, "item_add", "crash", psycopg.types.json.Jsonb("late"))
            rows(other, "item_claim", "crash", session.id, 1)
            other.execute("PREPARE TRANSACTION 'items'")
    items_server.crash()
    with items_server.connect() as conn:
        states = "SELECT id, state FROM eskit_lease.items WHERE queue = 'crash'"
        assert {id: state for id, state in conn.execute(states).fetchall() if state == "later"} == {ids[2]: "later"}
        other = Session(conn, "other", ttl="60 s")
        # A claim or the worker frees the items of the dead session; the prepared transaction has claimed another one.
        wait_until(lambda: conn.execute("SELECT count(*) FROM eskit_lease.sessions WHERE consumer = 'gone' AND state <> 'expired'").fetchone()[0] == 0)
        got = []

        def claim():
            got.extend(item.id for item in rows(conn, "item_claim", "crash", other.id, 100))
            return len(got) >= 6

        wait_until(claim, pause=0.05)
        assert sorted(got) == sorted([*ids[3:5], *ids[6:]])
        assert call(conn, "item_done", [claimed[0].id, claimed[1].id], claimed[0].fence) == 2
        conn.execute("ROLLBACK PREPARED 'items'")
        wait_until(lambda: [item.id for item in rows(conn, "item_claim", "crash", other.id, 100)] == [ids[5]])
        assert late not in dict(conn.execute(states).fetchall())


def test_an_old_snapshot_does_not_slow_claims(items_server):
    """While an old snapshot is open, a claim's reads of the index do not grow with the number of finished items."""
    with items_server.connect() as conn, items_server.connect() as old:
        call(conn, "queue_create", "old")
        session = Session(conn, "claimer", ttl="120 s")
        old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT count(*) FROM eskit_lease.items")
        read = "SELECT pg_stat_get_blocks_fetched('eskit_lease._items_pkey'::regclass)"

        def read_by_claims():
            """Returns the index blocks that 50 claims of one item each have read."""
            for _ in range(50):
                (item,) = rows(conn, "item_claim", "old", session.id, 1)
                call(conn, "item_done", [item.id], item.fence)

            def reported():
                # A backend reports its reads only now and then, when it is idle.
                before = conn.execute(read).fetchone()[0]
                time.sleep(1.2)
                conn.execute("SELECT 1")
                return conn.execute(read).fetchone()[0] == before

            wait_until(reported)
            return conn.execute(read).fetchone()[0]

        def add(count):
            call(conn, "item_add_many", "old", [psycopg.types.json.Jsonb(n) for n in range(count)])

        add(100)
        first = read_by_claims()
        second = read_by_claims() - first
        add(20_000)
        while len(claimed := rows(conn, "item_claim", "old", session.id, 1000)) == 1000:
            call(conn, "item_done", [item.id for item in claimed], claimed[0].fence)
        if claimed:
            call(conn, "item_done", [item.id for item in claimed], claimed[0].fence)
        add(100)
        third = read_by_claims()
        fourth = read_by_claims() - third
        # 20,000 dead entries fill some 80 blocks of the index.
        assert fourth <= 2 * second, (second, fourth)
        old.execute("ROLLBACK")


def test_dumped_and_restored(items_server, tmp_path):
    with items_server.connect() as conn:
        call(conn, "queue_create", "dump", 1)
        ids = call(conn, "item_add_many", "dump", [psycopg.types.json.Jsonb(n) for n in range(4)])
        session = Session(conn, "claimer", ttl="60 s")
        dead, claimed = rows(conn, "item_claim", "dump", session.id, 2)
        call(conn, "item_fail", dead.id, dead.fence, "dead")
        call(conn, "item_add", "dump", psycopg.types.json.Jsonb("later"), None, "2100-01-01")
    dump = tmp_path / "dump.sql"
    pg_bin = os.environ["PG_BIN"]
    subprocess.run([f"{pg_bin}/pg_dump", "-f", str(dump), items_server.dsn()], check=True)
    items_server.query("CREATE DATABASE restored")
    subprocess.run([f"{pg_bin}/psql", "-qX", "-v", "ON_ERROR_STOP=1", "-f", str(dump), items_server.dsn("restored")], check=True, stdout=subprocess.DEVNULL)
    with items_server.connect("restored") as conn:
        session = Session(conn, "claimer", ttl="60 s")
        # A claim belongs to its own server: in the restored database claimed items are free.
        assert [item.id for item in rows(conn, "item_claim", "dump", session.id, 10)] == ids[1:]
        assert conn.execute("SELECT id, error FROM eskit_lease.dead_items WHERE queue = 'dump'").fetchall() == [(ids[0], "dead")]
        assert call(conn, "item_add", "dump", psycopg.types.json.Jsonb("new")) > ids[-1]
        assert conn.execute("SELECT count(*) FROM eskit_lease.items WHERE queue = 'dump' AND state = 'later'").fetchone() == (1,)


def test_adding_wakes_and_tells_listeners(items_server):
    with items_server.connect() as conn, items_server.connect() as listener, items_server.connect() as adder:
        call(conn, "queue_create", "wake")
        listener.execute("LISTEN eskit_lease")
        session = Session(conn, "hungry", ttl="60 s")
        assert rows(conn, "item_claim", "wake", session.id) == []
        with adder.transaction():
            call(adder, "item_add", "wake", psycopg.types.json.Jsonb(1))
            assert session.wait("0").reason == "timeout"
        assert session.wait("10 s").reason == "changed"
        notes = listener.notifies(timeout=30, stop_after=1)
        assert [note.payload for note in notes] == ['{"event":"items","queue":"wake"}']
        assert len(rows(conn, "item_claim", "wake", session.id)) == 1
