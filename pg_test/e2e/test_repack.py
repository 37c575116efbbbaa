"""REPACK, which PostgreSQL has from 19 on: of our tables while they are in use, and of a table of users."""

import threading
import time

import psycopg
import pytest
from client import Session, call
from conftest import MAJOR, wait_until

pytestmark = pytest.mark.skipif(int(MAJOR) < 19, reason="it is for 19 and later")
OURS = """
    SELECT c.relname FROM pg_class AS c JOIN pg_depend AS d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid
    WHERE d.refclassid = 'pg_extension'::regclass AND c.relkind = 'r' AND c.relnamespace = 'eskit_lease'::regnamespace
"""


class Busy(threading.Thread):
    """Acquires, checks and releases until it is stopped. `failed` are the errors but 55P03, which a lock of the table
    may cause."""

    def __init__(self, conn, number):
        super().__init__()
        self.conn, self.resource = conn, f"r{number}"
        self.over, self.checks, self.failed = False, 0, []
        self.session = Session(conn, f"busy {number}", ttl="5 min")

    def run(self):
        while not self.over:
            try:
                fence = call(self.conn, "lease_acquire", self.resource, self.session.id).fence
                for _ in range(5):
                    if fence is not None:
                        self.conn.execute("SELECT eskit_lease.fence_check(%s, %s)", (self.resource, fence))
                        self.checks += 1
                if fence is not None:
                    call(self.conn, "lease_release", self.resource, fence)
            except psycopg.errors.LockNotAvailable:
                pass
            except psycopg.Error as error:
                self.failed.append(error)


def test_ours_are_repacked_in_use(connect):
    """Concurrently it is refused. Otherwise calls may have to wait for the table, and no more."""
    admin = connect()
    tables = [name for (name,) in admin.execute(OURS).fetchall()]
    assert {"_leases", "_sessions", "_items"} <= set(tables)
    busy = [Busy(connect(), number) for number in range(2)]
    for one in busy:
        one.start()
    try:
        for _ in range(5):
            for table in tables:
                with pytest.raises(psycopg.errors.FeatureNotSupported, match=f'"{table}" cannot be repacked concurrently'):
                    admin.execute(f"REPACK (CONCURRENTLY) eskit_lease.{table}")
            for table in ("_leases", "_sessions"):
                admin.execute(f"REPACK (CONCURRENTLY off) eskit_lease.{table}")
        seen = [one.checks for one in busy]
        wait_until(lambda: all(one.checks > before for one, before in zip(busy, seen, strict=True)))
    finally:
        for one in busy:
            one.over = True
            one.join()
    assert not [str(error) for one in busy for error in one.failed]


def test_what_is_repacked_stays_known_to_older_snapshots(connect):
    """REPACK (CONCURRENTLY) would let all rows look as new as itself, so that begin() raises 40001."""
    conn, admin = connect(), connect()
    session = Session(conn, "consumer", ttl="5 min")
    attempt = call(conn, "execution_begin", "key", session.id)
    call(conn, "execution_fail", "key", attempt.fence, "once more", True)
    with conn.transaction():
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        conn.execute("SELECT")
        for how in ("CONCURRENTLY", "CONCURRENTLY off, CONCURRENTLY", "CONCURRENTLY off"):
            try:
                admin.execute(f"REPACK ({how}) eskit_lease._executions")
            except psycopg.errors.FeatureNotSupported:
                assert how != "CONCURRENTLY off"
        assert call(conn, "execution_begin", "key", session.id).first


def test_of_users_it_holds_the_horizon_and_is_named(connect, background):
    """A reader keeps the command from its end. It has no transaction id, so that it holds no horizon itself."""
    conn, reader, repacker = connect(), connect(), connect()
    conn.execute("CREATE TABLE _leases (n bigint PRIMARY KEY)")
    blockers = "SELECT pid FROM eskit_lease.position_blockers"
    with reader.transaction():
        reader.execute("SELECT FROM _leases")
        repacked = background(repacker.execute, "REPACK (CONCURRENTLY) _leases")
        wait_until(lambda: conn.execute("SELECT 1 FROM pg_locks WHERE NOT granted AND pid = %s", (repacker.info.backend_pid,)).fetchone())
        ((position,),) = conn.execute("SELECT eskit_lease.position_next()").fetchall()
        assert (repacker.info.backend_pid,) in conn.execute(blockers).fetchall()
        for _ in range(3):
            assert conn.execute("SELECT eskit_lease.position_horizon()").fetchone()[0] <= position
            time.sleep(0.01)
    repacked.result()
    assert (repacker.info.backend_pid,) not in conn.execute(blockers).fetchall()
    wait_until(lambda: conn.execute("SELECT eskit_lease.position_horizon()").fetchone()[0] > position)
