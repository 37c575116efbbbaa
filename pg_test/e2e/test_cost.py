"""Costs that must be zero: heartbeats write no row and no WAL, and grants, checks and heartbeats make no multixacts."""

import threading
import time

import psycopg
import pytest
from client import Session, call
from conftest import Server, wait_until


@pytest.fixture(scope="module")
def still():
    """A server on which only the test does anything."""
    server = Server("e2e-still", "autovacuum = off", "eskit_lease.worker = off", "bgwriter_lru_maxpages = 0", "checkpoint_timeout = 1h")
    server.query("CREATE EXTENSION eskit_lease")
    yield server
    server.stop()


HELD = """
    SELECT count(*) FILTER (WHERE granted)
    FROM eskit_lease.lease_acquire_many(ARRAY(SELECT 'r' || i FROM generate_series(1, 100000) AS i), %s)"""
ROWS = """
    SELECT (SELECT md5(string_agg(concat(xmin, ctid), ',' ORDER BY ctid)) FROM eskit_lease._leases),
           (SELECT md5(string_agg(concat(xmin, xmax, ctid), ',' ORDER BY ctid)) FROM eskit_lease._sessions)"""


def test_one_heartbeat_keeps_a_hundred_thousand_leases(still):
    with still.connect() as conn, still.connect() as watcher:
        session = Session(conn, "holder", ttl="60 s")
        assert conn.execute(HELD, (session.id,)).fetchone() == (100_000,)
        session.heartbeat()  # the first heartbeat reads what the connection then caches
        watcher.execute("CHECKPOINT")
        rows = watcher.execute(ROWS).fetchone()

        # A standby snapshot may be logged at any time, which is not the heartbeat's doing. So one quiet try of several
        # is proof.
        def wal_of_heartbeats():
            before = watcher.execute("SELECT pg_current_wal_insert_lsn()").fetchone()[0]
            for _ in range(100):
                assert session.heartbeat().alive
            return watcher.execute("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), %s)", (before,)).fetchone()[0]

        assert 0 in (wal_of_heartbeats() for _ in range(5))
        assert watcher.execute(ROWS).fetchone() == rows

        with psycopg.connect(still.dsn()) as inside:
            assert call(inside, "session_heartbeat", session.id).alive
            assert inside.execute("SELECT txid_current_if_assigned()").fetchone() == (None,)
            assert call(inside, "lease_renew", "r1", 0).reason != "held"
            assert call(inside, "lease_acquire", "r1", session.id).reason == "already_held"
            assert inside.execute("SELECT txid_current_if_assigned()").fetchone() == (None,)
        with psycopg.connect(still.dsn()) as reading:
            reading.read_only = True
            assert call(reading, "session_heartbeat", session.id).alive
            assert call(reading, "session_wait", session.id, session.revision, "1 ms").reason in ("timeout", "changed")
        expires = watcher.execute("SELECT DISTINCT expires_at IS NOT NULL, state FROM eskit_lease.leases").fetchall()
        assert expires == [(True, "held")]
        assert session.close()


def test_a_refused_acquire_takes_no_transaction_id(still):
    with still.connect() as conn, psycopg.connect(still.dsn()) as inside:
        holder, rival = Session(conn, "holder"), Session(conn, "rival")
        holder.take("taken")
        assert call(inside, "lease_acquire", "taken", rival.id).reason == "held"
        assert inside.execute("SELECT txid_current_if_assigned()").fetchone() == (None,)


BUFFERS = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT eskit_lease.group_release(%s, %s, %s)"


def test_a_release_of_a_partition_does_not_look_at_the_others(still):
    """A release reads as many pages in a group of 4,096 as in one of 64; also hundreds of releases in one
    transaction."""
    read = {}
    with still.connect() as conn, psycopg.connect(still.dsn()) as inside:
        for partitions in (64, 4_096):
            name = f"of {partitions}"
            owner, heir = Session(conn, "owner", ttl="60 s"), Session(conn, "heir", ttl="60 s")
            call(conn, "group_create", name, partitions, "sticky", "1 hour")
            for member in (owner, heir):
                member.join(name)
            asked = [row for row in owner.assignment(name) if row.state == "revoking"]
            assert len(asked) == partitions // 2

            def pages(row, conn=inside, name=name):
                (plan,) = conn.execute(BUFFERS, (name, row.partition, row.fence)).fetchone()[0]
                return plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]

            for row in asked[:3]:  # the first releases read catalogs
                pages(row)
            read[partitions] = min(pages(row) for row in asked[3:8])
            read[f"the last of {partitions}"] = min(pages(row) for row in asked[8:][-8:])
            inside.commit()
            assert heir.owns(conn, name) == min(len(asked), 16)
    print(read)
    assert read[4_096] < 2 * read[64], read


CLIENTS, EACH = 8, 1_250


def test_no_multixacts(server, db, connect, background):
    """10,000 grants, checks and heartbeats from 8 connections of one session."""
    session = Session(connect(), ttl="60 s")
    session.take("shared")

    def next_multixact():
        server.query("CHECKPOINT")
        return server.query("SELECT next_multixact_id, next_multi_offset FROM pg_control_checkpoint()")

    before = next_multixact()
    start = threading.Barrier(CLIENTS)

    def work(i):
        conn = connect(autocommit=False)
        start.wait()
        for j in range(EACH):
            with conn.transaction():
                call(conn, "fence_check", "shared", session.fences["shared"])
                assert call(conn, "lease_acquire", f"r {i} {j}", session.id).granted
                assert call(conn, "session_heartbeat", session.id).alive
            if j % 50 == 0:  # some work in savepoints, where a lock taken twice would make one
                with conn.transaction(), conn.transaction():
                    call(conn, "fence_check", "shared", session.fences["shared"])

    done = [background(work, i) for i in range(CLIENTS)]
    for result in done:
        result.result()
    assert connect().execute("SELECT count(*) FROM eskit_lease.leases WHERE state = 'held'").fetchone() == (CLIENTS * EACH + 1,)
    assert next_multixact() == before
    assert session.close()
    wait_until(lambda: server.query("SELECT count(*) FROM eskit_lease.leases WHERE state = 'held'", dbname=db) == [(0,)])
    assert next_multixact() == before


def test_a_savepoint_does_not_look_at_what_was_noted_before(connect):
    """Thousands of checks are noted to the end of the transaction; each savepoint looks only for its own checks."""
    blocks = "DO $$BEGIN FOR i IN 1..20000 LOOP BEGIN EXCEPTION WHEN OTHERS THEN NULL; END; END LOOP; END$$"
    acquire = """CREATE TABLE held AS SELECT * FROM eskit_lease.lease_acquire_many(
                     ARRAY(SELECT 'r' || i FROM generate_series(1, 4000) AS i), %s)"""
    with connect() as conn:
        conn.execute(acquire.replace("%s", f"'{Session(conn).id}'"))
    conn = connect(autocommit=False)

    def seconds(passes):
        conn.execute("SELECT count(eskit_lease.fence_check(resource, fence)) FROM (SELECT * FROM held LIMIT %s) AS h", (passes,))
        times = []
        for _ in range(3):
            began = time.monotonic()
            conn.execute(blocks)
            times.append(time.monotonic() - began)
        return min(times)

    few, many = seconds(1), seconds(4000)
    print(f"{few:.3f} s after one pass, {many:.3f} s after 4000")
    assert many < 20 * few
