"""How long finished rows are kept: run-once keys that are done or resolved, dead items, and the history of leases."""

import psycopg
import pytest
from client import Session, call, rows, stat
from conftest import wait_until


class Keys:
    table = "_executions"
    setting = "eskit_lease.execution_retention"
    ids = 'SELECT key FROM eskit_lease._executions ORDER BY key COLLATE "C"'
    age = """UPDATE eskit_lease._executions SET started_at = started_at - interval '31 days', finished_at = finished_at - interval '31 days',
             resolved_at = resolved_at - interval '31 days' WHERE key LIKE 'old %'"""

    @staticmethod
    def end(conn, session, count):
        run = """SELECT count(eskit_lease.execution_finish(key, b.fence))
                 FROM generate_series(1, %s) AS i, concat('ended ', i) AS key, eskit_lease.execution_begin(key, %s) AS b"""
        assert conn.execute(run, (count, session.id)).fetchone() == (count,)

    @staticmethod
    def every_kind(conn, session):
        """Makes keys in each state, named by their age. Returns the keys that are never removed."""
        dead = Session(conn, "dead", ttl="120 s")

        def begin(runner, key):
            return call(conn, "execution_begin", key, runner.id).fence

        kept = []
        for name in (f"{when} {i}" for i in range(4) for when in ("old", "new")):
            call(conn, "execution_finish", f"{name} done", begin(session, f"{name} done"))
            for outcome in ("failed", "retry", "done"):
                begin(dead, f"{name} resolved {outcome}")
            call(conn, "execution_fail", f"{name} failed", begin(session, f"{name} failed"), "error")
            call(conn, "execution_fail", f"{name} free", begin(session, f"{name} free"), "error", True)
            begin(session, f"{name} running"), begin(dead, f"{name} in doubt")
            kept += [f"{name} {kind}" for kind in ("failed", "free", "running", "in doubt")]
        dead.close()
        conn.execute(
            """SELECT eskit_lease.execution_resolve(key, substring(key FROM 'resolved (.*)'))
               FROM eskit_lease.executions WHERE key LIKE '%resolved%'"""
        )
        return kept


class DeadItems:
    table = "_dead_items"
    setting = "eskit_lease.dead_item_retention"
    ids = "SELECT key FROM eskit_lease._dead_items UNION ALL SELECT key FROM eskit_lease._items ORDER BY 1"
    age = "UPDATE eskit_lease._dead_items SET added_at = added_at - interval '31 days', died_at = died_at - interval '31 days' WHERE key LIKE 'old %'"

    @staticmethod
    def end(conn, session, count):
        """Makes `count` dead items: half of them fail, and the claimer of the others ends."""
        call(conn, "queue_create", "q", 1)
        claimer = Session(conn, "claimer", ttl="120 s")
        keys = [f"ended {i}" for i in range(count)]
        call(conn, "item_add_many", "q", [psycopg.types.json.Jsonb(1)] * count, keys)
        for item in rows(conn, "item_claim", "q", session.id, count // 2):
            assert not call(conn, "item_fail", item.id, item.fence, "error")
        assert len(rows(conn, "item_claim", "q", claimer.id, count - count // 2)) == count - count // 2
        assert claimer.close()

    @staticmethod
    def every_kind(conn, session):
        call(conn, "queue_create", "q", 1)
        for name in (f"{when} {i}" for i in range(4) for when in ("old", "new")):
            for how in ("ended", "failed", "kept claimed", "kept ready"):
                call(conn, "item_add", "q", psycopg.types.json.Jsonb(1), f"{name} {how}")
            claimer = Session(conn, "claimer", ttl="120 s")
            assert len(rows(conn, "item_claim", "q", claimer.id, 1)) == 1
            claimer.close()
            (item,) = rows(conn, "item_claim", "q", session.id, 1)
            call(conn, "item_fail", item.id, item.fence, "error")
            assert len(rows(conn, "item_claim", "q", session.id, 2)) == 2
        return [f"{when} {i} kept {how}" for i in range(4) for when in ("old", "new") for how in ("claimed", "ready")]


class History:
    setting = "eskit_lease.history_retention"
    ids = "SELECT resource FROM eskit_lease._history ORDER BY 1"
    age = "UPDATE eskit_lease._history SET at = at - interval '31 days' WHERE resource LIKE 'old %'"
    lose = """SELECT count(eskit_lease.lease_force_release(a.resource, a.fence, 'why'))
              FROM eskit_lease.lease_acquire_many(%s::text[], %s) AS a"""

    @staticmethod
    def end(conn, session, count):
        names = [f"ended {i}" for i in range(count)]
        assert conn.execute(History.lose, (names, session.id)).fetchone() == (count,)

    @staticmethod
    def every_kind(conn, session):
        names = [f"{when} {i}" for i in range(8) for when in ("old", "new")]
        conn.execute(History.lose, (names, session.id))
        return []


def keep(server, kind, retention):
    server.set(**{kind.setting.replace(".", "__"): retention})
    if retention is not None:
        shown = f"SELECT current_setting('{kind.setting}')::interval = '{retention}'::interval"
        wait_until(lambda: server.query(shown) == [(True,)])


def left(conn, kind):
    return [key for (key,) in conn.execute(kind.ids)]


@pytest.fixture(params=[Keys, DeadItems, History], ids=["keys", "dead items", "history"])
def kind(request, server):
    yield request.param
    keep(server, request.param, None)


@pytest.fixture
def old_and_new(kind, no_worker, connect):
    """Makes rows of every kind, half of them 31 days old, in a database that no process has looked at yet. Gives the
    connection, and the names of the rows to keep: the new and the undecided ones."""
    conn = connect()
    kept = kind.every_kind(conn, Session(conn, "session", ttl="120 s"))
    conn.execute(kind.age)
    kept += [name for name in left(conn, kind) if name.startswith("new") and name not in kept]
    return conn, sorted(kept)


def test_removed_in_batches(kind, old_and_new):
    conn, kept = old_and_new
    before = left(conn, kind)
    assert len(kept) < len(before) - 5
    while call(conn, "session_sweep", 3).more:
        after = left(conn, kind)
        assert len(before) - len(after) <= 3
        before = after
    assert left(conn, kind) == kept
    if kind is Keys:
        assert call(conn, "execution_begin", "old 0 done", Session(conn).id).first, "free again"


@pytest.mark.parametrize("retention", ["-1", "40 d"])
def test_kept(server, kind, old_and_new, retention):
    keep(server, kind, retention)
    conn, _ = old_and_new
    before = left(conn, kind)
    while call(conn, "session_sweep", 1000).more:
        pass
    assert left(conn, kind) == before


@pytest.mark.parametrize("how", ["ended", "prepared", "restarted"])
def test_worker_comes_though_nothing_happens(server, kind, connect, how):
    """The worker comes although the only session lives on and nothing else happens."""
    if how != "restarted":
        keep(server, kind, "2 s")
    with connect() as conn:
        session = Session(conn, "session", ttl="600 s")
        if how == "prepared":
            with conn.transaction():
                conn.execute("SELECT 1")
                kind.end(conn, session, 10)
                conn.execute(f"PREPARE TRANSACTION '{conn.info.dbname}'")
            conn.execute(f"COMMIT PREPARED '{conn.info.dbname}'")
        else:
            kind.end(conn, session, 1500)
            assert left(conn, kind)
    if how == "restarted":
        server.restart("immediate")
        keep(server, kind, "2 s")
    with server.connect(connect().info.dbname) as conn:
        wait_until(lambda: not left(conn, kind), pause=0.2)


def test_worker_takes_all_that_was_old_when_the_server_started(server, kind, no_worker, connect):
    """The old rows are more than one batch, and no call's answer says that there is more."""
    with connect() as conn:
        kind.end(conn, Session(conn, "session", ttl="600 s"), 1500)
        conn.execute(kind.age.replace("old %", "ended %"))
    server.query("ALTER SYSTEM RESET eskit_lease.worker")
    server.restart("immediate")
    with server.connect(connect().info.dbname) as conn:
        wait_until(lambda: not left(conn, kind), pause=0.1)


def test_batches_after_one_that_is_rolled_back(old_and_new, kind):
    """After the rollback the deleted rows exist again, and later batches delete them."""
    conn, kept = old_and_new
    conn.execute("BEGIN")
    assert call(conn, "session_sweep", 3).more
    conn.execute("ROLLBACK")
    while call(conn, "session_sweep", 3).more:
        pass
    assert left(conn, kind) == kept


@pytest.mark.parametrize("kept", [Keys, DeadItems])
def test_hand_overs_do_not_wait_for_a_table_that_is_locked(server, no_worker, connect, kept):
    """The table is locked for long, as by VACUUM FULL. The rows are deleted later."""
    conn, locker = connect(), connect()
    session, holder = Session(conn, ttl="600 s"), Session(conn, "holder", ttl="1 s")
    kept.end(conn, session, 2)
    holder.take("held")
    session.queue("held")
    keep(server, kept, "1 s")
    try:
        locker.execute("BEGIN")
        locker.execute(f"LOCK TABLE eskit_lease.{kept.table} IN ACCESS EXCLUSIVE MODE")
        server.set(eskit_lease__worker=None)
        owner = "SELECT session FROM eskit_lease._leases WHERE resource = 'held'"
        wait_until(lambda: conn.execute(owner).fetchone() == (session.id,), timeout=20)
        locker.execute("ROLLBACK")
        wait_until(lambda: not left(conn, kept), timeout=20)
    finally:
        keep(server, kept, None)


@pytest.mark.parametrize("second", ["COMMIT", "ROLLBACK", "COMMIT PREPARED"])
def test_claims_that_were_finished_side_by_side(server, connect, second):
    """Each of two transactions finishes one of two items, and cannot see whether the other has finished its own."""
    one, other = connect(), connect(autocommit=False)
    session = Session(one, "session", ttl="600 s")
    call(one, "queue_create", "q")
    server.set(eskit_lease__row_retention="1 s")
    try:
        call(one, "item_add_many", "q", [psycopg.types.json.Jsonb(1)] * 6)
        finished, live = (rows(one, "item_claim", "q", session.id, 2) for _ in range(2))
        one.execute("BEGIN")
        for conn, item in ((one, finished[0]), (other, finished[1]), (other, live[0])):
            assert call(conn, "item_done", [item.id], item.fence) == 1
        one.execute("COMMIT")
        if second == "COMMIT PREPARED":
            other.execute("PREPARE TRANSACTION 'side by side'")
            other.commit()
            one.execute("COMMIT PREPARED 'side by side'")
        else:
            other.execute(second)
            other.commit()
        claims = lambda: {fence for (fence,) in one.execute("SELECT fence FROM eskit_lease._claims")}  # noqa: E731
        if second == "ROLLBACK":
            assert claims() == {finished[0].fence, live[0].fence}
            assert call(one, "item_done", [finished[1].id], finished[1].fence) == 1
        wait_until(lambda: claims() == {live[0].fence}, pause=0.1)
        assert call(one, "item_done", [live[1].id], live[1].fence) == 1
    finally:
        server.set(eskit_lease__row_retention=None)


def test_claims_that_were_finished_side_by_side_by_one_who_is_slow(server, connect):
    """The transaction that finished first commits last, long after a sweep has looked for such claims."""
    one, other = connect(), connect(autocommit=False)
    session = Session(one, "session", ttl="600 s")
    call(one, "queue_create", "q")
    call(one, "item_add_many", "q", [psycopg.types.json.Jsonb(1)] * 2)
    server.set(eskit_lease__row_retention="1 s")
    try:
        first, second = rows(one, "item_claim", "q", session.id, 2)
        for conn, item in ((other, first), (one, second)):
            assert call(conn, "item_done", [item.id], item.fence) == 1
        for turn in range(2):
            session.take(f"turn {turn}")
            assert session.release(f"turn {turn}")
            wait_until(lambda: call(one, "session_sweep") and one.execute("SELECT FROM eskit_lease._leases").rowcount == 0, pause=0.1)
        other.commit()
        wait_until(lambda: one.execute("SELECT FROM eskit_lease._claims").rowcount == 0, timeout=20, pause=0.1)
    finally:
        server.set(eskit_lease__row_retention=None)


@pytest.mark.parametrize("end", ["ROLLBACK", "ROLLBACK TO here"])
def test_a_sweep_that_is_rolled_back(server, no_worker, connect, end):
    """The sweep that found nothing more to delete was rolled back, so rows remain."""
    one, other = connect(), connect(autocommit=False)
    session = Session(one, "session", ttl="600 s")
    call(one, "queue_create", "q")
    call(one, "item_add_many", "q", [psycopg.types.json.Jsonb(1)] * 2)
    items = rows(one, "item_claim", "q", session.id, 2)
    one.execute("BEGIN")
    for conn, item in zip((one, other), items, strict=True):
        assert call(conn, "item_done", [item.id], item.fence) == 1
    one.execute("COMMIT")
    other.commit()
    claims = lambda: one.execute("SELECT FROM eskit_lease._claims").rowcount  # noqa: E731
    call(one, "session_sweep")  # the first sweep scans the whole table
    assert claims() == 1
    server.set(eskit_lease__row_retention="0")
    try:
        wait_until(lambda: one.execute("SHOW eskit_lease.row_retention").fetchone() == ("0",))
        one.execute("BEGIN")
        one.execute("SAVEPOINT here")
        wait_until(lambda: call(one, "session_sweep") and not claims(), pause=0.1)
        one.execute(end)
        assert claims() == 1
        one.execute("COMMIT")
        server.set(eskit_lease__worker=None)
        wait_until(lambda: not claims(), timeout=20, pause=0.1)
    finally:
        server.set(eskit_lease__row_retention=None)


def test_history_that_is_written_just_after_a_look(server, connect):
    """At the last look there was no history, and nothing else happens afterwards."""
    keep(server, History, "2 s")
    try:
        conn = connect()
        session = Session(conn, ttl="600 s")
        session.take("lost")
        sweeps = stat(conn, "sweeps")

        def swept():
            # A sweep that has already begun counts and may miss this, so it is repeated.
            session.take("let go")
            session.release("let go")
            return stat(conn, "sweeps") > sweeps

        wait_until(swept)
        assert call(conn, "lease_force_release", "lost", session.fences["lost"], "why")
        assert left(conn, History) == ["lost"]
        wait_until(lambda: not left(conn, History), timeout=20, pause=0.2)
    finally:
        keep(server, History, None)


def test_released_leases(server, no_worker, connect):
    """Released leases are removed even if there was none at the last look."""
    conn = connect()
    session = Session(conn, ttl="600 s")
    released = lambda: conn.execute("SELECT count(*) FROM eskit_lease._leases").fetchone()[0]  # noqa: E731
    server.set(eskit_lease__row_retention="0")
    try:
        for name in ("first", "second"):
            session.take(name)
            assert session.release(name)
            wait_until(lambda: call(conn, "session_sweep") and not released(), pause=0.1)
    finally:
        server.set(eskit_lease__row_retention=None)
