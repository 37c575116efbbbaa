"""What a hostile reader found in cursors: an administrator changes their table while they move."""

import pytest
from client import Session, call
from conftest import wait_until
from test_group_attacks import group

# The position, read without the index that the verbs use.
STORED = "SELECT position FROM eskit_lease._cursors WHERE group_name || '' = 'g'"


@pytest.fixture
def cursor(connect):
    """Gives a cursor at 1, and a function that moves it."""
    conn = connect()
    group(conn, 1)
    owner = Session(conn, "owner", "60 s").join("g")
    fence = wait_until(lambda: owner.assignment("g"))[0].fence

    def commit(position):
        return call(conn, "cursor_commit", "g", 0, position, fence)

    assert commit(1)
    return conn, commit


def test_moved_while_its_index_is_made_again(connect, background, cursor):
    conn, commit = cursor
    old, reindexing = connect(autocommit=False), connect()
    old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    old.execute("SELECT")
    old.execute("SELECT count(*) FROM pg_class")  # REINDEX waits for this snapshot, which keeps every version
    reindex = background(reindexing.execute, "REINDEX INDEX CONCURRENTLY eskit_lease._cursors_pkey")
    wait_until(lambda: conn.execute("SELECT FROM pg_stat_progress_create_index WHERE phase LIKE 'waiting for%'").rowcount == 1)
    for position in range(2, 402):
        assert commit(position)
    old.rollback()
    reindex.result()
    assert call(conn, "cursor_position", "g", 0) == 401
    assert not commit(400)
    assert conn.execute(STORED).fetchall() == [(401,)]
    conn.execute("REINDEX INDEX eskit_lease._cursors_pkey")  # fails if a row exists twice


@pytest.mark.parametrize("index", ["(group_name, partition) INCLUDE (position)", "USING brin (position)"])
def test_moved_where_it_has_another_index(cursor, index):
    conn, commit = cursor
    conn.execute(f"CREATE INDEX extra ON eskit_lease._cursors {index}")
    try:
        for position in range(2, 5):
            assert commit(position)
        assert call(conn, "cursor_position", "g", 0) == 4
        conn.execute("SET enable_seqscan = off")
        assert conn.execute("SELECT count(*) FROM eskit_lease._cursors WHERE position = 4").fetchone() == (1,)
    finally:
        conn.execute("DROP INDEX eskit_lease.extra")


def test_moved_where_it_has_a_trigger_and_a_check(cursor):
    conn, commit = cursor
    conn.execute("CREATE TABLE moved (position bigint)")
    conn.execute("""CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql
                    AS 'BEGIN INSERT INTO public.moved VALUES (NEW.position); RETURN NEW; END'""")
    conn.execute("GRANT ALL ON moved TO PUBLIC")
    conn.execute("CREATE TRIGGER note AFTER UPDATE ON eskit_lease._cursors FOR EACH ROW EXECUTE FUNCTION note()")
    try:
        assert commit(2)
        assert conn.execute("SELECT position FROM moved").fetchall() == [(2,)]
    finally:
        conn.execute("DROP TRIGGER note ON eskit_lease._cursors")
        conn.execute("DROP FUNCTION note")
        conn.execute("DROP TABLE moved")
