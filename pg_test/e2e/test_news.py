"""session_watch: session_wait answers when rows numbered by position_next can be read."""

import time
import uuid

import psycopg
import pytest
from client import Session, call, rows
from conftest import Server, make_anew, wait_until

READ = "SELECT count(*) FROM news WHERE position > %s AND position < eskit_lease.position_horizon()"
TABLES = "CREATE TABLE {} (position bigint PRIMARY KEY DEFAULT eskit_lease.position_next(), what text)"


class Reader:
    def __init__(self, conn):
        self.conn, self.session = conn, Session(conn, "reader", ttl="600 s")
        self.watch("news")
        self.drain()

    def watch(self, table):
        answer = self.conn.execute("SELECT alive, revision FROM eskit_lease.session_watch(%s, %s)", (self.session.id, table)).fetchone()
        assert answer[0]
        self.revision = answer[1]

    def wait(self, timeout="5 s"):
        reason, self.revision = self.conn.execute("SELECT reason, revision FROM eskit_lease.session_wait(%s, %s, %s)", (self.session.id, self.revision, timeout)).fetchone()
        return reason

    def wait_among_many(self):
        (told,) = rows(self.conn, "session_wait_many", [self.session.id], [self.revision], "5 s")
        self.revision = told.revision
        return told.reason

    def read(self):
        return self.conn.execute(READ, (0,)).fetchone()[0]

    def drain(self):
        """A new watch begins with one news: what was written before it may not be readable yet."""
        wait_until(lambda: self.wait("20 ms") != "changed")


@pytest.fixture
def reader(server, db, connect):
    conn = connect(server)
    conn.execute(TABLES.format("news"))
    conn.execute(TABLES.format("other"))
    return Reader(conn)


def asleep(server, db):
    sleeping = "SELECT FROM pg_stat_activity WHERE datname = %s AND query LIKE '%%session_wait%%' AND wait_event_type = 'Extension'"
    wait_until(lambda: server.query(sleeping, db))


def test_a_commit_wakes_the_reader_who_finds_the_row(server, db, connect, reader, background):
    writer = connect(server)
    late = []
    for number in range(20):
        told = background(lambda: (reader.wait("10 s"), time.monotonic()))
        asleep(server, db)
        began = time.monotonic()
        writer.execute("INSERT INTO news (what) VALUES ('x')")
        reason, at = told.result()
        assert (reason, reader.read()) == ("changed", number + 1)
        late.append(at - began)
    assert sorted(late)[10] < 0.5, late


def test_other_tables_rollbacks_and_rows_without_positions_wake_nobody(server, db, connect, reader):
    writer = connect(server)
    writer.execute("INSERT INTO other (what) VALUES ('x')")
    with pytest.raises(psycopg.Error), writer.transaction():
        writer.execute("INSERT INTO news (what) VALUES ('x')")
        writer.execute("SELECT 1/0")
    with writer.transaction():
        writer.execute("SAVEPOINT s")
        writer.execute("INSERT INTO news (what) VALUES ('x')")
        writer.execute("ROLLBACK TO s")
        writer.execute("INSERT INTO other (what) VALUES ('x')")
    assert reader.wait("100 ms") == "timeout"
    reader.watch(None)
    writer.execute("INSERT INTO news (what) VALUES ('x')")
    assert reader.wait("100 ms") == "timeout"


@pytest.mark.parametrize("how", ["COMMIT", "ROLLBACK", "COMMIT PREPARED", "ROLLBACK PREPARED", "its client leaves", "in another database"])
def test_news_behind_an_older_transaction_come_with_its_end(server, db, connect, reader, background, how):
    writer, blocker = connect(server), connect(server, "postgres" if "database" in how else db)
    blocker.execute("BEGIN")
    blocker.execute("SELECT pg_current_xact_id()")
    writer.execute("INSERT INTO news (what) VALUES ('x')")
    if "PREPARED" in how:
        blocker.execute("PREPARE TRANSACTION 'older'")
    assert (reader.wait("200 ms"), reader.read()) == ("timeout", 0)
    told = background(lambda: (reader.wait("10 s"), time.monotonic()))
    asleep(server, db)
    ended = time.monotonic()
    if "client" in how:
        blocker.close()
    else:
        blocker.execute(f"{how} 'older'" if "PREPARED" in how else how if how.isupper() else "COMMIT")
    reason, at = told.result()
    assert (reason, reader.read()) == ("changed", 1)
    assert at - ended < 5  # the benchmark news asks for 250 ms


def test_transactions_that_overlap_hold_back_only_what_is_above_the_horizon(server, db, connect, reader):
    one, two, writer = connect(server), connect(server), connect(server)
    one.execute("BEGIN")
    one.execute("SELECT pg_current_xact_id()")
    writer.execute("INSERT INTO news (what) VALUES ('x')")
    two.execute("BEGIN")
    two.execute("SELECT pg_current_xact_id()")
    writer.execute("INSERT INTO news (what) VALUES ('x')")
    assert (reader.wait("100 ms"), reader.read()) == ("timeout", 0)
    one.execute("COMMIT")
    assert (reader.wait(), reader.read()) == ("changed", 1)
    assert (reader.wait("100 ms"), reader.read()) == ("timeout", 1)
    two.execute("COMMIT")
    assert (reader.wait(), reader.read()) == ("changed", 2)


def test_rows_are_told_of_that_a_raise_of_positions_holds_back(server, db, connect, reader):
    one, two, writer = connect(server), connect(server), connect(server)
    assert call(writer, "position_raise", 1 << 50)
    reader.drain()
    one.execute("BEGIN")
    one.execute("SELECT pg_current_xact_id()")
    writer.execute("INSERT INTO news (what) VALUES ('x')")
    two.execute("BEGIN")
    two.execute("SELECT pg_current_xact_id()")
    assert call(writer, "position_raise", 1 << 60)
    one.execute("COMMIT")
    reader.drain()
    assert reader.read() == 0  # until all transactions from before the raise have ended
    two.execute("COMMIT")
    assert (reader.wait("10 s"), reader.read()) == ("changed", 1)


def test_news_from_before_the_watch_and_between_waits_are_not_missed(server, db, connect, reader):
    blocker, writer = connect(server), connect(server)
    reader.watch(None)
    blocker.execute("BEGIN")
    blocker.execute("SELECT pg_current_xact_id()")
    writer.execute("INSERT INTO news (what) VALUES ('x')")
    reader.watch("news")
    assert (reader.read(), reader.wait("100 ms")) == (0, "timeout")
    blocker.execute("COMMIT")
    assert (reader.wait(), reader.read()) == ("changed", 1)
    writer.execute("INSERT INTO news (what) VALUES ('x')")  # nobody waits
    assert (reader.wait(), reader.read(), reader.wait("50 ms")) == ("changed", 2, "timeout")


def test_a_thousand_commits_are_one_news_for_a_reader_who_is_away(server, db, connect, reader):
    writer = connect(server)
    before = reader.revision
    for _ in range(1_000):
        writer.execute("INSERT INTO news (what) VALUES ('x')")
    wait_until(lambda: reader.wait() == "changed" and reader.read() == 1_000)
    reader.drain()
    assert reader.revision < before + 10  # one, unless transactions of the server itself were open


CHANGES = {
    "attach": "INSERT INTO new_part VALUES (eskit_lease.position_next(), 2); ALTER TABLE parted ATTACH PARTITION new_part FOR VALUES IN (2)",
    "add": "ALTER TABLE plain ADD position bigint DEFAULT eskit_lease.position_next()",
}


@pytest.mark.parametrize("change", CHANGES)
def test_rows_that_ddl_brings_are_told_of(server, db, connect, reader, change):
    conn = connect(server)
    conn.execute("CREATE TABLE parted (position bigint, part int) PARTITION BY LIST (part); CREATE TABLE new_part (LIKE parted)")
    conn.execute("CREATE TABLE plain AS SELECT 1 AS number")
    reader.watch("parted" if change == "attach" else "plain")
    reader.drain()
    with conn.transaction():
        conn.execute(CHANGES[change])
    assert reader.wait() == "changed"


def test_a_position_that_was_drawn_before_a_rollback_to_a_savepoint(server, db, connect, reader):
    writer = connect(server)
    with writer.transaction():
        writer.execute("SAVEPOINT s")
        position = writer.execute("SELECT eskit_lease.position_next()").fetchone()[0]
        writer.execute("ROLLBACK TO s")
        writer.execute("INSERT INTO news VALUES (%s, 'x')", (position,))
    assert (reader.wait(), reader.read()) == ("changed", 1)


def test_a_prepared_transaction_is_told_of_at_its_commit(server, db, connect, reader, background):
    writer = connect(server)
    gid = f"news-{uuid.uuid4()}"
    writer.execute("BEGIN")
    writer.execute("INSERT INTO news (what) VALUES ('x')")
    writer.execute(f"PREPARE TRANSACTION '{gid}'")
    assert (reader.wait("100 ms"), reader.read()) == ("timeout", 0)
    told = background(reader.wait, "10 s")
    asleep(server, db)
    writer.execute(f"COMMIT PREPARED '{gid}'")
    assert (told.result(), reader.read()) == ("changed", 1)


def test_a_wait_without_a_timeout_finds_readable_news(server, db, connect, reader):
    connect(server).execute("INSERT INTO news (what) VALUES ('x')")
    wait_until(lambda: reader.wait("0") == "changed")
    assert (reader.read(), reader.wait("0")) == (1, "timeout")


def test_a_wait_that_gets_no_place_finds_readable_news(server, db, connect, reader):
    writer = connect(server)
    server.set(eskit_lease__max_waiting=0)
    try:
        wait_until(lambda: reader.conn.execute("SHOW eskit_lease.max_waiting").fetchone() == ("0",))
        assert reader.wait() == "wait_limit"
        for number, wait in enumerate((reader.wait, reader.wait_among_many), 1):
            writer.execute("INSERT INTO news (what) VALUES ('x')")
            wait_until(lambda wait=wait: wait() == "changed")
            assert (reader.read(), wait()) == (number, "wait_limit")
    finally:
        server.set(eskit_lease__max_waiting=None)


def test_one_of_many_sessions_has_news(server, db, connect, reader):
    writer, idle = connect(server), Session(reader.conn, "idle", ttl="600 s")
    ids, revisions = [idle.id, reader.session.id], [idle.revision, reader.revision]
    writer.execute("INSERT INTO news (what) VALUES ('x')")
    told = rows(reader.conn, "session_wait_many", ids, revisions, "10 s")
    assert ([row.reason for row in told], reader.read()) == (["alive", "changed"], 1)
    revisions[1] = told[1].revision
    assert {row.reason for row in rows(reader.conn, "session_wait_many", ids, revisions, "50 ms")} == {"timeout"}


def test_a_watch_stays_after_a_rollback(server, connect, reader):
    reader.watch(None)
    reader.conn.execute("BEGIN")
    reader.watch("news")
    reader.conn.execute("ROLLBACK")
    reader.drain()
    connect(server).execute("INSERT INTO news (what) VALUES ('x')")
    assert reader.wait() == "changed"


def test_a_take_over_does_not_inherit_the_watch(server, db, connect, reader):
    writer = connect(server)
    reader.session = Session(reader.conn, "reader", ttl="600 s", takeover=True)
    reader.revision = reader.session.revision
    writer.execute("INSERT INTO news (what) VALUES ('x')")
    reader.drain()
    writer.execute("INSERT INTO news (what) VALUES ('x')")
    assert (reader.wait("100 ms"), reader.read()) == ("timeout", 2)
    reader.watch("news")
    writer.execute("INSERT INTO news (what) VALUES ('x')")
    assert (reader.wait(), reader.read()) == ("changed", 3)


def test_a_restart_ends_the_watch_and_not_the_session():
    server = Server("e2e-news")
    try:
        with server.connect() as conn:
            make_anew(conn)
            conn.execute(TABLES.format("news"))
            reader = Reader(conn)
        server.restart()
        with server.connect() as reader.conn, server.connect() as writer:
            answer = call(reader.conn, "session_heartbeat", reader.session.id)
            assert answer.alive
            reader.revision = answer.revision
            reader.drain()
            writer.execute("INSERT INTO news (what) VALUES ('x')")
            assert (reader.wait("100 ms"), reader.read()) == ("timeout", 1)
            reader.watch("news")
            assert reader.wait() == "changed"
            writer.execute("INSERT INTO news (what) VALUES ('x')")
            assert (reader.wait(), reader.read()) == ("changed", 2)
    finally:
        server.stop()


def test_who_may_watch(server, db, connect, reader):
    conn = reader.conn
    assert call(conn, "session_watch", uuid.uuid4(), "news").reason == "unknown_session"
    with pytest.raises(psycopg.errors.NullValueNotAllowed):
        call(conn, "session_watch", None, "news")
    conn.execute("CREATE VIEW of_news AS SELECT * FROM news; CREATE TYPE no_table AS (position bigint)")
    no_tables = ["of_news", "news_pkey", "no_table", "eskit_lease.fence_seq"]
    for table, code in [("pg_authid", None), (4294967295, "42P01"), *[(name, "42809") for name in no_tables]]:
        answer = None
        try:
            conn.execute("SELECT eskit_lease.session_watch(%s, %s::regclass)", (reader.session.id, table))
        except psycopg.Error as error:
            answer = error.sqlstate
        assert answer == code
    conn.execute("DO $$BEGIN CREATE ROLE news_stranger; EXCEPTION WHEN duplicate_object THEN END$$")
    call(conn, "grant_consumer", "news_stranger")
    conn.execute("SET ROLE news_stranger")
    mine = Session(conn, "stranger")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        conn.execute("SELECT eskit_lease.session_watch(%s, 'news')", (mine.id,))
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        conn.execute("SELECT eskit_lease.session_watch(%s, NULL)", (reader.session.id,))
    conn.execute("RESET ROLE")
