"""The disk is full: a failed write is an error that changes nothing, calls that write nothing go on, and all calls work
once there is room."""

import contextlib
import shutil
import subprocess

import psycopg
import pytest
from client import Session, call, rows
from conftest import Server, once, wait_until
from faults import LOGS_SQLSTATES, Competition, Log, nothing_left
from psycopg.types.json import Jsonb

pytestmark = once


class SmallDisk:
    def __init__(self, at, megabytes):
        self.at, self.ballast = at, at / "ballast"
        at.mkdir(parents=True, exist_ok=True)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", at], capture_output=True, text=True)
        if mounted.returncode != 0:
            pytest.skip(f"mounting a small file system is forbidden here: {mounted.stderr}")

    def fill(self):
        with self.ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"\0" * 4096)

    def make_room(self):
        self.ballast.unlink(missing_ok=True)

    def end(self):
        subprocess.run(["umount", "--lazy", self.at], check=True)


@pytest.fixture
def small(request, tmp_path):
    """A server whose tables, or whose WAL, are on a small disk."""
    server = Server("e2e-full", "fsync = on", "max_wal_size = '48MB'", "min_wal_size = '32MB'", LOGS_SQLSTATES)
    disk = SmallDisk(server.data.parent / "small", 96)
    try:
        if request.param == "wal":
            server.stop()
            shutil.move(server.data / "pg_wal", disk.at / "pg_wal")
            (server.data / "pg_wal").symlink_to(disk.at / "pg_wal")
            server.restart()
        else:
            (disk.at / "tables").mkdir(mode=0o700)
            server.query(f"CREATE TABLESPACE small LOCATION '{disk.at / 'tables'}'")
            server.query("ALTER DATABASE postgres SET default_tablespace = small")
        server.query("CREATE EXTENSION eskit_lease")
        server.query("SELECT eskit_lease.queue_create('q')")
        yield server, disk
    finally:
        server.stop("immediate")
        disk.end()


def fills_up(conn, session):
    """Acquires leases until the existing pages are full. Returns the names."""
    taken = []
    with pytest.raises(psycopg.errors.DiskFull) as full:
        while True:
            names = [f"many {len(taken) + i} {'x' * 200}" for i in range(100)]
            answers = rows(conn, "lease_acquire_many", names, session.id)
            taken += [answer.resource for answer in answers if answer.granted]
    assert full.value.sqlstate == "53100"
    return taken


@pytest.mark.parametrize("small", ["tables"], indirect=True)
def test_no_room_for_tables(small):
    server, disk = small
    log, pid = Log(server), server.pid
    with server.connect() as conn, server.connect() as other:
        holder, rival = Session(conn, "holder", ttl="60 s"), Session(other, "rival", ttl="60 s")
        fence = holder.take("r")
        ids = call(conn, "item_add_many", "q", [Jsonb(i) for i in range(20)])
        key = call(conn, "execution_begin", "key", holder.id).fence
        with Competition(server) as competition:
            disk.fill()
            taken = fills_up(conn, rival)
            # Calls that need no new page go on: heartbeats, checks, refusals.
            assert holder.heartbeat().alive and holder.renew("r").held
            holder.check("r")
            assert rival.acquire("r").reason == "held"
            assert all(row.reason == "already_held" for row in rows(conn, "lease_acquire_many", taken, rival.id))
            with pytest.raises(psycopg.errors.DiskFull):
                call(conn, "item_add_many", "q", [Jsonb("x" * 10_000)] * 100)
            assert conn.execute("SELECT items FROM eskit_lease.queues").fetchone() == (20,)
            disk.make_room()
            competition.go_on()
        competition.prove(server)
        assert holder.renew("r").held and holder.fences["r"] == fence
        assert call(conn, "execution_finish", "key", key)
        done = 0
        while claimed := rows(conn, "item_claim", "q", holder.id, 5):
            done += call(conn, "item_done", [item.id for item in claimed], claimed[0].fence)
        assert done == len(ids)
        assert holder.release("r") and rival.take("r") > fence
    assert server.pid == pid, "PostgreSQL survives it, and so does the extension"
    nothing_left(server)
    log.is_clean()


@pytest.mark.parametrize("small", ["wal"], indirect=True)
def test_no_room_for_wal(small):
    """Without room for WAL PostgreSQL stops, and does not start. Once there is room, all that was confirmed is there,
    and each holder holds what it held."""
    server, disk = small
    with server.connect() as conn, Competition(server) as competition:
        holder = Session(conn, "holder", ttl="20 s")
        fence = holder.take("r")
        conn.execute("CREATE TABLE ballast (t text)")
        disk.fill()
        with pytest.raises(psycopg.OperationalError):
            while True:
                conn.execute("INSERT INTO ballast SELECT repeat('x', 1000) FROM generate_series(1, 10000)")
        wait_until(lambda: not is_up(server))
        confirmed, highest = competition.confirmed(), competition.highest_fence()
        disk.make_room()
        if not (server.data / "postmaster.pid").exists() or not is_up(server):
            server.restart()
        wait_until(lambda: is_up(server))
        competition.go_on()
        competition.prove(server, confirmed)
        with server.connect() as again:
            holder.conn = again
            assert holder.heartbeat().alive and holder.renew("r").held and holder.fences["r"] == fence
            assert Session(again, "new").take("new") > max(highest, fence)
    competition.prove(server)
    nothing_left(server)
    assert not [line for line in server.logged("XX000")]


def is_up(server):
    try:
        return server.query("SELECT 1")
    except psycopg.OperationalError:
        return False
