"""Fenced tables with real processes: stale holders, prepared transactions, crashes, dump and restore, a server without shared memory."""

import os
import subprocess
from pathlib import Path

import psycopg
import pytest
from client import Session, call
from conftest import Pooler, Server, wait_until

NOT_CHECKED = "LF002"


def state(conn, statement, *params):
    """Returns the outcome of a statement in a transaction of its own: ok, or the SQLSTATE."""
    try:
        with conn.transaction():
            conn.execute(statement, params or None)
        return "ok"
    except psycopg.Error as error:
        return error.sqlstate


def write(conn, i, fence=None, resource="r"):
    check = f"SELECT eskit_lease.fence_check('{resource}', {fence}); " if fence else ""
    return state(conn, f"{check}INSERT INTO work VALUES ({i})")


def table(conn, resource="r", column=None):
    conn.execute("CREATE TABLE work (i int, p int)")
    assert call(conn, "table_fence", "work", resource, column)


def rows(conn):
    return [i for (i,) in conn.execute("SELECT i FROM work ORDER BY i")]


def psql(server, db, script):
    tool = Path(os.environ["PG_BIN"]) / "psql"
    return subprocess.run(
        [tool, "-X", "-q", "-A", "-t", "-v", "VERBOSITY=verbose", server.dsn(db)], input=script, capture_output=True, text=True
    )


def test_from_plain_psql(server, db, connect):
    conn = connect()
    holder = Session(conn)
    fence = holder.take("r")
    table(conn)
    refused = psql(server, db, "COPY work FROM stdin;\n1\t1\n\\.\nINSERT INTO work VALUES (2);\n")
    assert refused.stderr.count("LF002") == 2
    passed = psql(server, db, f"BEGIN; SELECT eskit_lease.fence_check('r', {fence});\nCOPY work FROM stdin;\n3\t3\n\\.\nCOMMIT;\n")
    assert "ERROR" not in passed.stderr
    assert rows(conn) == [3]


def test_through_a_pooler(pgbouncer, connect):
    """A check does not count for the next user of the server connection."""
    conn = connect(via=pgbouncer)
    fence = Session(conn).take("r")
    table(conn)
    for i in range(5):
        assert write(conn, i, fence) == "ok"
        assert write(connect(via=pgbouncer), -1) == NOT_CHECKED
    assert rows(conn) == [0, 1, 2, 3, 4]


def test_through_a_pooler_without_transactions(server, connect, tmp_path):
    """In statement mode one statement checks and writes."""
    pooler = Pooler(server, tmp_path, pool_mode="statement")
    try:
        conn = connect(via=pooler)
        conn.prepare_threshold = None
        holder, write = Session(conn, ttl="60 s"), "INSERT INTO work SELECT {} FROM eskit_lease.fence_check('r', {})"
        fence = holder.take("r")
        table(conn)
        conn.execute(write.format(1, fence))
        with pytest.raises(psycopg.Error) as refused:
            conn.execute(write.format(2, fence - 1))
        assert refused.value.sqlstate == "LF001"
        assert holder.release("r")
        with pytest.raises(psycopg.Error) as refused:
            conn.execute(write.format(3, fence))
        assert refused.value.sqlstate == "LF001"
        assert rows(conn) == [1]
    finally:
        pooler.stop()


def test_a_holder_stopped_beyond_its_time(connect):
    """A holder passes a check and is stopped in its transaction for longer than its TTL. Its later writes there
    succeed, as no other session has had the lease; in its next transaction it is refused."""
    conn, other = connect(), connect()
    stale, successor = Session(conn, "stale", ttl="1 s"), Session(other, "successor")
    fence = stale.take("r")
    table(conn)
    with conn.transaction():
        call(conn, "fence_check", "r", fence)
        wait_until(lambda: stale.expired(other))
        assert not successor.acquire("r").granted
        conn.execute("INSERT INTO work VALUES (1)")
    newer = successor.take("r")
    assert write(other, 2, newer) == "ok"
    assert write(conn, 3, fence) == "LF001"
    assert write(conn, 3) == NOT_CHECKED
    # The check fails, but the client writes all the same.
    with conn.transaction():
        assert state(conn, f"SELECT eskit_lease.fence_check('r', {fence})") == "LF001"
        assert write(conn, 3) == NOT_CHECKED
    assert rows(conn) == [1, 2]


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_prepared(db, connect, end):
    conn, other = connect(autocommit=False), connect()
    holder, next_one = Session(other, ttl="1 s"), Session(other)
    fence = holder.take("r")
    table(other)
    call(conn, "fence_check", "r", fence)
    conn.execute("INSERT INTO work VALUES (1)")
    conn.execute(f"PREPARE TRANSACTION '{db}'")
    conn.rollback()
    try:
        assert state(conn, "INSERT INTO work VALUES (2)") == NOT_CHECKED
        wait_until(lambda: holder.expired(other))
        assert not next_one.acquire("r").granted
    finally:
        other.execute(f"{end} PREPARED '{db}'")
    assert write(other, 3, next_one.take("r")) == "ok"
    assert rows(other) == ([1, 3] if end == "COMMIT" else [3])


def test_after_a_crash(server, db, connect):
    """A fenced table stays so, and a held lease stays held."""
    conn = connect()
    holder = Session(conn, ttl="60 s")
    fence = holder.take("r")
    table(conn)
    server.crash()
    conn = connect()
    assert write(conn, 1) == NOT_CHECKED
    assert write(conn, 2, fence) == "ok"
    assert rows(conn) == [2]


def test_dump_and_restore(server, db, connect, tmp_path):
    """A restore loads rows first, then creates the triggers, so the copy is fenced like the original."""
    conn = connect()
    fence = Session(conn).take("r")
    table(conn)
    conn.execute("CREATE TABLE parts (i int, p int) PARTITION BY LIST (p); CREATE TABLE parts_0 PARTITION OF parts FOR VALUES IN (0)")
    call(conn, "group_create", "g", 2)
    assert call(conn, "table_fence", "parts", "g", "p")
    assert write(conn, 1, fence) == "ok"
    fenced = "SELECT table_name::text, resource, partition_column, checks_each, complete FROM eskit_lease.fenced_tables ORDER BY 1"
    before = conn.execute(fenced).fetchall()
    assert before == [("parts", "g", "p", "row", True), ("work", "r", None, "statement", True)]
    copy, file = f"{db}_copy", tmp_path / "dump"
    tools = Path(os.environ["PG_BIN"])
    subprocess.run([tools / "pg_dump", "-Fc", "-f", file, server.dsn(db)], check=True)
    server.query(f"CREATE DATABASE {copy}")
    try:
        subprocess.run([tools / "pg_restore", "--exit-on-error", "-d", server.dsn(copy), file], check=True)
        restored = connect(dbname=copy)
        assert restored.execute(fenced).fetchall() == before
        assert rows(restored) == [1]
        assert write(restored, 2) == NOT_CHECKED
        assert write(restored, 2, fence) == "LF001"
        assert write(restored, 2, Session(restored).take("r")) == "ok"
        assert state(restored, "INSERT INTO parts_0 VALUES (1, 0)") == NOT_CHECKED
    finally:
        server.query(f"DROP DATABASE {copy} WITH (FORCE)")


def test_half_a_trigger(connect):
    """A trigger by column without its transition tables refuses all writes, and the view shows that it is
    incomplete."""
    conn = connect()
    conn.execute("CREATE TABLE work (i int, p int)")
    call(conn, "group_create", "g", 2)
    assert call(conn, "table_fence", "work", "g", "p")
    complete = "SELECT complete FROM eskit_lease.fenced_tables"
    by = "EXECUTE FUNCTION eskit_lease.require_fence('g', 'p')"
    for events, written in (("INSERT", "INSERT INTO work VALUES (1, 0)"), ("INSERT OR DELETE", "DELETE FROM work")):
        conn.execute(f"CREATE OR REPLACE TRIGGER eskit_lease_fence AFTER {events} ON work {by}")
        conn.execute("ALTER TABLE work ENABLE ALWAYS TRIGGER eskit_lease_fence")
        assert state(conn, written) == "39P01"
        assert conn.execute(complete).fetchall() == [(False,)]
        assert call(conn, "table_fence", "work", "g", "p")
        assert conn.execute(complete).fetchall() == [(True,)]
    conn.execute("DROP TRIGGER eskit_lease_fence ON work")
    assert conn.execute(complete).fetchall() == [(False,)]


def test_without_shared_memory():
    """Without shared memory no check can have passed, so all writes are refused, also those of superusers. The table
    can be unfenced."""
    server = Server("e2e-fenced", "eskit_lease.fence_superusers = off")
    try:
        server.query("CREATE EXTENSION eskit_lease")
        with server.connect() as conn:
            table(conn)
            assert write(conn, 1) == "ok"
        with (server.data / "postgresql.conf").open("a") as conf:
            conf.write("shared_preload_libraries = ''\n")
        server.restart()
        with server.connect() as conn:
            with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState) as refused:
                conn.execute("INSERT INTO work VALUES (2)")
            assert "shared_preload_libraries" in refused.value.diag.message_hint
            assert state(conn, "SELECT eskit_lease.table_fence('work', 'r')") == "55000"
            assert conn.execute("SELECT resource FROM eskit_lease.fenced_tables").fetchall() == [("r",)]
            assert call(conn, "table_unfence", "work")
            assert write(conn, 2) == "ok"
    finally:
        server.stop()


def test_logical_replication():
    """Replicated rows, from the first copy on, pass if statements are checked, and are refused if rows are checked.
    What triggers write meanwhile does not count as replicated."""
    server = Server("e2e-fenced", "wal_level = logical", "wal_retrieve_retry_interval = '50ms'", "max_worker_processes = 16")
    try:
        server.query("CREATE TABLE work (i int, p int)")
        server.query("INSERT INTO work VALUES (0, 0)")
        server.query("CREATE PUBLICATION p FOR TABLE work")
        server.query("SELECT pg_create_logical_replication_slot('fenced', 'pgoutput')")
        server.query("CREATE DATABASE subscriber")
        server.query("CREATE EXTENSION eskit_lease", dbname="subscriber")
        with server.connect("subscriber") as conn:
            table(conn)
            source = f"CONNECTION '{server.dsn()}' PUBLICATION p WITH (create_slot = false, slot_name = fenced)"
            conn.execute(f"CREATE SUBSCRIPTION s {source}")
            wait_until(lambda: rows(conn) == [0])
            server.query("TRUNCATE work")
            server.query("INSERT INTO work VALUES (1, 0)")
            wait_until(lambda: rows(conn) == [1])
            conn.execute("CREATE TABLE other (i int)")
            call(conn, "table_fence", "other", "r")
            conn.execute(
                """
                CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO public.other VALUES (NEW.i); RETURN NULL; END';
                CREATE TRIGGER note AFTER INSERT ON work FOR EACH ROW EXECUTE FUNCTION note();
                ALTER TABLE work ENABLE ALWAYS TRIGGER note
                """
            )
            server.query("INSERT INTO work VALUES (2, 0)")
            wait_until(lambda: server.logged('table "other" is fenced by "r"'))
            assert rows(conn) == [1]
            conn.execute("DROP TRIGGER note ON work")
            wait_until(lambda: rows(conn) == [1, 2])
            # Rows that an expression of the table writes do not count as replicated.
            conn.execute("CREATE TABLE another (i int)")
            call(conn, "table_fence", "another", "r")
            conn.execute(
                """
                CREATE FUNCTION peek(i int) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN INSERT INTO public.another VALUES (i); RETURN true; END';
                ALTER TABLE work ADD CONSTRAINT peek CHECK (peek(i)) NOT VALID
                """
            )
            server.query("INSERT INTO work VALUES (3, 0)")
            wait_until(lambda: server.logged('table "another" is fenced by "r"'))
            conn.execute("ALTER TABLE work DROP CONSTRAINT peek")
            wait_until(lambda: rows(conn) == [1, 2, 3])
            call(conn, "table_unfence", "work")
            call(conn, "group_create", "g", 2)
            call(conn, "table_fence", "work", "g", "p")
            server.query("TRUNCATE work")
            server.query("INSERT INTO work VALUES (3, 0)")
            wait_until(lambda: rows(conn) == [3])
            conn.execute("CREATE TABLE whole (i int, p int) PARTITION BY LIST (p); ALTER TABLE whole ATTACH PARTITION work DEFAULT")
            call(conn, "table_fence", "work", "g", "p")
            server.query("INSERT INTO work VALUES (4, 0)")
            wait_until(lambda: server.logged('partition 0 of table "work" is fenced by "g"'))
            assert rows(conn) == [3]
            call(conn, "table_unfence", "work")
            wait_until(lambda: rows(conn) == [3, 4])
            conn.execute("ALTER SUBSCRIPTION s DISABLE")
            conn.execute("ALTER SUBSCRIPTION s SET (slot_name = NONE)")
            conn.execute("DROP SUBSCRIPTION s")
    finally:
        server.stop("immediate")
