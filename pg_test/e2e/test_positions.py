"""Many write an outbox and several read it: each reader reads each row once, all in the same order, across crashes and
restores."""

import os
import random
import subprocess
import time
from pathlib import Path

import psycopg
import pytest
from client import Session, Stubborn, call
from conftest import Server, wait_until
from psycopg import IsolationLevel

OUTBOX = """
    CREATE TABLE events (id bigserial, position bigint PRIMARY KEY DEFAULT eskit_lease.position_next(), what text NOT NULL);
    CREATE TABLE heard (turn bigserial PRIMARY KEY, reader text NOT NULL, position bigint NOT NULL);
"""
INSERT = "INSERT INTO events (what) VALUES (%s) RETURNING id, position"
READ = """SELECT position FROM events WHERE position > %s AND position < eskit_lease.position_horizon()
          ORDER BY position LIMIT %s"""


@pytest.fixture(scope="module")
def outbox():
    server = Server("e2e-positions")
    server.query("CREATE EXTENSION eskit_lease")
    yield server
    server.stop("immediate")


class Writer(Stubborn):
    """Draws early and commits late, rolls back, also to savepoints, and prepares transactions, at random."""

    prepared = None

    def prepare(self):
        # The prepared transaction has either survived the crash or was never prepared.
        if self.prepared and self.conn.execute("SELECT 1 FROM pg_prepared_xacts WHERE gid = %s", (self.prepared,)).fetchone():
            self.conn.execute(f"COMMIT PREPARED '{self.prepared}'")
        self.prepared = None

    def work(self):
        end = random.choice(["COMMIT"] * 5 + ["ROLLBACK", "PREPARE"])
        self.conn.execute("BEGIN")
        for _ in range(random.randint(1, 3)):
            self.conn.execute(INSERT, (end,))
            time.sleep(random.uniform(0, 0.02))
            if random.random() < 0.3:
                self.conn.execute("SAVEPOINT s")
                self.conn.execute(INSERT, ("undone",))
                self.conn.execute("ROLLBACK TO s")
        if end == "PREPARE":
            self.prepared = f"{self.name}-{time.monotonic_ns()}"
            self.conn.execute(f"PREPARE TRANSACTION '{self.prepared}'")
            time.sleep(random.uniform(0, 0.02))
            self.prepare()
        else:
            self.conn.execute(end)


class Reader(Stubborn):
    """Reads batches in transactions that note what was read, and move a cursor of one bigint."""

    def __init__(self, server, name, level):
        super().__init__(server)
        self.reader, self.level = name, level
        with server.connect() as conn:
            self.session = Session(conn, name, ttl="1 h")
            call(conn, "group_create", name, 1)
            self.session.join(name)
            ((_, self.fence, *_),) = wait_until(lambda: self.session.assignment(name))

    def prepare(self):
        self.conn.isolation_level = self.level

    def work(self):
        with self.conn.transaction():
            last = call(self.conn, "cursor_position", self.reader, 0)
            batch = [position for (position,) in self.conn.execute(READ, (last, random.randint(1, 20)))]
            if batch:
                self.conn.execute("INSERT INTO heard (reader, position) SELECT %s, unnest(%s::bigint[])", (self.reader, batch))
                assert call(self.conn, "cursor_commit", self.reader, 0, batch[-1], self.fence)
        if not batch:
            time.sleep(0.005)


class Naive(Stubborn):
    """Reads by the number of a sequence, as readers of outboxes often do."""

    def __init__(self, server):
        super().__init__(server)
        self.last, self.heard = 0, set()

    def work(self):
        for (number,) in self.conn.execute("SELECT id FROM events WHERE id > %s ORDER BY id", (self.last,)):
            self.heard.add(number)
            self.last = number
        time.sleep(0.005)


def up(server):
    try:
        return server.query("SELECT 1")
    except psycopg.OperationalError:
        return False


def test_every_reader_reads_every_row_once_and_in_one_order(outbox):
    outbox.query(OUTBOX)
    writers = [Writer(outbox) for _ in range(8)]
    levels = (IsolationLevel.READ_COMMITTED, IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE)
    readers, naive = [Reader(outbox, level.name, level) for level in levels], Naive(outbox)

    def more():
        ((before, _),) = outbox.query("SELECT count(*), max(id) FROM events")
        wait_until(lambda: outbox.query("SELECT count(*) FROM events")[0][0] > before + 200)

    def overtaken(number):
        """Waits until the naive reader has gone past a row that no reader sees yet."""
        wait_until(lambda: naive.last > number)

    def raised():
        """Raises positions far above those drawn so far, while all writers and readers work."""
        ((before,),) = outbox.query("SELECT max(position) FROM events")
        assert outbox.query("SELECT eskit_lease.position_raise(%s + (1::bigint << 40))", before) == [(True,)]
        with outbox.connect() as conn:
            ((_, drawn),) = conn.execute(INSERT, ("raised",)).fetchall()
        assert drawn > before + (1 << 40)

    for thread in (*writers, *readers, naive):
        thread.start()
    for _ in range(5):
        more()
        raised()
    more()
    # Positions drawn first and committed last: by a transaction prepared before the crash and committed after it, and
    # by a slow writer.
    with outbox.connect() as conn:
        conn.execute("BEGIN")
        ((prepared, _),) = conn.execute(INSERT, ("prepared",)).fetchall()
        conn.execute("PREPARE TRANSACTION 'slow'")
    overtaken(prepared)
    raised()
    outbox.crash()
    wait_until(lambda: up(outbox))
    more()
    raised()
    more()
    assert ("slow",) in outbox.query("SELECT prepared FROM eskit_lease.position_blockers WHERE pid IS NULL")
    outbox.query("COMMIT PREPARED 'slow'")
    with outbox.connect() as conn:
        conn.execute("BEGIN")
        ((slow, _),) = conn.execute(INSERT, ("slow",)).fetchall()
        overtaken(slow)
        conn.execute(INSERT, ("slow",))
        assert (conn.info.backend_pid,) in outbox.query("SELECT pid FROM eskit_lease.position_blockers")
        conn.execute("COMMIT")
    more()
    for writer in writers:
        writer.end()
    with outbox.connect() as conn:  # prepared transactions that a writer left behind
        for (left,) in conn.execute("SELECT gid FROM pg_prepared_xacts").fetchall():
            conn.execute(f"COMMIT PREPARED '{left}'")

    written = outbox.query("SELECT position, id FROM events ORDER BY position")
    for reader in readers:
        heard = "SELECT position FROM heard WHERE reader = %s ORDER BY turn"
        wait_until(lambda: reader.failure or len(outbox.query(heard, reader.reader)) >= len(written))  # noqa: B023
        reader.end()
        assert outbox.query(heard, reader.reader) == [(position,) for position, _ in written], reader.reader
    naive.end()
    lost = {number for _, number in written} - naive.heard
    print(f"{len(written)} rows; by id > last {len(lost)} of them are lost")
    assert {prepared, slow} <= lost, "the test could not have failed"


def run(server, tool, *args, dbname="postgres"):
    command = [Path(os.environ["PG_BIN"]) / tool, "-d", server.dsn(dbname), *args]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def restore(dump, server, dbname, directory):
    (directory / "dump.sql").write_text(dump)
    server.query(f"CREATE DATABASE {dbname}")
    run(server, "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", directory / "dump.sql", dbname=dbname)


def check_goes_on(server, dbname):
    """Checks that all rows can be read before anything is written, and that later rows come after them and are read as
    usual."""
    with server.connect(dbname, options="-c synchronous_commit=off") as conn:
        count, greatest = conn.execute("SELECT count(*), max(position) FROM events").fetchone()
        wait_until(lambda: len(conn.execute(READ, (0, 10_000)).fetchall()) == count)
        ((_, position),) = conn.execute(INSERT, ("new",)).fetchall()
        assert position > greatest
        wait_until(lambda: conn.execute(READ, (greatest, 10)).fetchall() == [(position,)])
        ((reserved,),) = conn.execute("SELECT last_value FROM eskit_lease.position_high").fetchall()
        assert position >> 20 < reserved
        return position


def test_positions_rise_over_dumps_restarts_and_crashes(outbox, tmp_path):
    """Restores a dump into a cluster whose transaction ids are far lower, and back into the first one."""
    ids = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
    outbox.query("CREATE DATABASE origin")
    with outbox.connect("origin") as conn:
        conn.execute("CREATE EXTENSION eskit_lease")
        conn.execute(OUTBOX)
        consume(conn, 20_000)
        for what in ("a", "b", "c"):
            ((_, last),) = conn.execute(INSERT, (what,)).fetchall()
        session = Session(conn, "reader", ttl="1 h")
        call(conn, "group_create", "readers", 1)
        ((_, fence, *_),) = wait_until(lambda: session.join("readers").assignment("readers"))
        assert call(conn, "cursor_commit", "readers", 0, last, fence)
    other = Server("e2e-positions-restored")
    try:
        restore(run(outbox, "pg_dump", dbname="origin"), other, "restored", tmp_path)
        ((far,),), ((near,),) = outbox.query(ids), other.query(ids)
        assert near < far - 10_000
        with other.connect("restored") as conn:  # no position has been drawn there yet
            wait_until(lambda: len(conn.execute(READ, (0, 10)).fetchall()) == 3)
            assert call(conn, "cursor_position", "readers", 0) == last
            assert conn.execute(READ, (last, 10)).fetchall() == []
            assert conn.execute("SELECT last_value FROM eskit_lease.position_base").fetchone() == (0,)
        assert check_goes_on(other, "restored") > last
        ((base,),) = other.query("SELECT last_value FROM eskit_lease.position_base", dbname="restored")
        assert base > 10_000
        for again in (other.restart, lambda: other.restart("immediate"), other.crash):
            again()
            wait_until(lambda: up(other))
            newest = check_goes_on(other, "restored")
        assert other.query("SELECT last_value FROM eskit_lease.position_base", dbname="restored") == [(base,)]
        restore(run(other, "pg_dump", dbname="restored"), outbox, "back", tmp_path)
        assert check_goes_on(outbox, "back") > newest
        outbox.restart("immediate")
        check_goes_on(outbox, "back")
        assert check_goes_on(outbox, "origin") < newest, "another database is not concerned"
    finally:
        other.stop("immediate")


def consume(conn, ids):
    conn.execute(f"DO $$BEGIN FOR i IN 1..{ids} LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END$$")


def test_a_dump_restored_on_a_physical_copy_of_its_cluster(outbox, tmp_path):
    """Both clusters have the same identifier, and one has gone on, by less than is reserved ahead."""
    outbox.query("CREATE DATABASE before")
    outbox.query("CREATE EXTENSION eskit_lease", dbname="before")
    outbox.query(OUTBOX, dbname="before")
    outbox.query(INSERT, "before the copy", dbname="before")
    outbox.stop()
    copy = Server("e2e-positions-copy", copy_of=outbox.data)
    outbox.restart()
    try:
        outbox.query("CREATE DATABASE after")  # with the same oids as the next database that the copy makes
        with outbox.connect("after") as conn:
            conn.execute("CREATE EXTENSION eskit_lease")
            conn.execute(OUTBOX)
            consume(conn, 5_000)
            conn.execute(INSERT, ("after the copy",))
        outbox.query(INSERT, "after the copy", dbname="before")
        for number, dbname in enumerate(("after", "before")):
            restore(run(outbox, "pg_dump", dbname=dbname), copy, f"restored_{number}", tmp_path)
            check_goes_on(copy, f"restored_{number}")
        check_goes_on(copy, "before")
        assert copy.query("SELECT last_value FROM eskit_lease.position_base", dbname="before") == [(0,)]
        # A database copied within the cluster keeps the raise, which need not be repeated.
        base = "SELECT last_value FROM eskit_lease.position_base"
        before = copy.query(base, dbname="restored_1")
        copy.query("CREATE DATABASE twin TEMPLATE restored_1")
        check_goes_on(copy, "twin")
        assert before > [(0,)] and copy.query(base, dbname="twin") == before
    finally:
        copy.stop("immediate")


def test_one_snapshot_for_all_fetches_of_a_cursor(connect):
    conn = connect()
    conn.execute(OUTBOX)
    conn.execute("INSERT INTO events (what) SELECT 'many' FROM generate_series(1, 1000)")
    wait_until(lambda: len(conn.execute(READ, (0, 1000)).fetchall()) == 1000)
    reader, slow, fast = connect(autocommit=False), connect(autocommit=False), connect()
    slow.execute(INSERT, ("slow",))
    fast.execute(INSERT, ("fast",))
    with reader.cursor("named") as cursor:
        cursor.execute("SELECT what FROM events WHERE position < eskit_lease.position_horizon() ORDER BY position")
        read = cursor.fetchmany(10)
        slow.commit()
        read += cursor.fetchall()
    assert read == [("many",)] * 1000
    reader.commit()
    newest = "SELECT what FROM events WHERE position < eskit_lease.position_horizon() ORDER BY position DESC LIMIT 2"
    wait_until(lambda: reader.execute(newest).fetchall() == [("fast",), ("slow",)] or reader.rollback())
