"""How much retention reads, and in which transactions it deletes."""

import pytest
from client import Session, call, rows
from conftest import wait_until


@pytest.fixture
def released_at_once(server, no_worker):
    """The worker is off, so no process looks for released rows yet."""
    server.set(eskit_lease__row_retention="0")
    yield
    server.set(eskit_lease__row_retention=None)


def old_snapshot(conn):
    conn.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    conn.execute("SELECT FROM eskit_lease._leases LIMIT 1")


def worker_ends(server):
    server.set(eskit_lease__worker="off")
    wait_until(lambda: not server.workers())  # by then they have reported their reads


def entries_read(conn, index):
    read = "SELECT idx_tup_read FROM pg_stat_all_indexes WHERE indexrelname = %s"
    return conn.execute(read, (index,)).fetchone()[0]


def test_batches_go_on_where_the_last_one_ended(server, released_at_once, connect):
    """An old snapshot keeps the deleted rows, and later batches do not read them again."""
    conn, old = connect(), connect()
    session, names = Session(conn, ttl="600 s"), [f"lease {i}" for i in range(8_000)]
    call(conn, "session_sweep")  # which looks through what is new to it
    for function in ("lease_acquire_many", "lease_release_many"):
        assert len(rows(conn, function, names, session.id)) == len(names)
    old_snapshot(old)
    server.set(eskit_lease__worker=None)
    wait_until(lambda: conn.execute("SELECT FROM eskit_lease._leases LIMIT 1").rowcount == 0)
    worker_ends(server)
    entries = entries_read(conn, "_leases_released_at")
    # The batches read each entry once, and so does the look for the oldest row at their end. If each batch began at the
    # first entry, the batches alone would read 36,000.
    assert len(names) <= entries < 3 * len(names)


def test_runs_go_on_behind_what_is_gone(server, no_worker, connect):
    """A run does not read entries that former runs have deleted. It still finds a key that was finished in a
    transaction that stayed open meanwhile."""
    conn, old, late = connect(), connect(), connect()
    session = Session(conn, ttl="600 s")
    left = lambda: conn.execute("SELECT FROM eskit_lease._executions").rowcount  # noqa: E731

    def finish(conn, *keys):
        run = """SELECT count(eskit_lease.execution_finish(key, b.fence))
                 FROM unnest(%s::text[]) AS key, eskit_lease.execution_begin(key, %s) AS b"""
        assert conn.execute(run, (list(keys), session.id)).fetchone() == (len(keys),)

    def entries_for(count):
        """Returns how many index entries the worker reads to remove so many keys that were just finished."""
        finish(conn, *(f"key {i}" for i in range(count)))
        before = entries_read(conn, "_executions_ended_at")
        server.set(eskit_lease__worker=None)
        wait_until(lambda: left() == 0, timeout=20)
        worker_ends(server)
        return entries_read(conn, "_executions_ended_at") - before

    server.set(eskit_lease__execution_retention="1 s")
    try:
        call(conn, "session_sweep")  # which looks through what is new to it
        old_snapshot(old)
        entries_for(2_000)
        late.execute("BEGIN")
        finish(late, "late")
        # From the oldest entry on, each run would read 2,000 entries twice.
        assert max(entries_for(10) for _ in range(3)) < 200
        late.execute("COMMIT")
        assert left() == 1
        server.set(eskit_lease__worker=None)
        wait_until(lambda: left() == 0, timeout=20)
    finally:
        server.set(eskit_lease__execution_retention=None)


def test_hand_overs_are_committed_before_rows_are_deleted(server, released_at_once, connect):
    """Deletes may take long. A session that is granted a lease does not wait for them."""
    conn, old = connect(), connect()
    session, holder = Session(conn, ttl="600 s"), Session(conn, "holder", ttl="1 s")
    for name in (f"released {i}" for i in range(10)):
        session.take(name)
        assert session.release(name)
    holder.take("held")
    session.queue("held")
    old_snapshot(old)
    wait_until(lambda: holder.expired(conn))
    server.set(eskit_lease__worker=None)
    wait_until(lambda: conn.execute("SELECT resource FROM eskit_lease._leases").fetchall() == [("held",)])
    granted = conn.execute("SELECT xmin::text FROM eskit_lease._leases WHERE session = %s", (session.id,)).fetchall()
    deleted = old.execute("SELECT DISTINCT xmax::text FROM eskit_lease._leases WHERE resource LIKE 'released %'").fetchall()
    assert len(granted) == len(deleted) == 1 and granted != deleted
