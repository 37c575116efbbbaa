"""Objects that another session has locked, or will lock once an open transaction ends: VACUUM FULL of a table, ALTER
SEQUENCE, as an update of the extension does, DROP EXTENSION. No call waits behind them: each call is refused within a
moment, with `busy` if it has that answer, otherwise with 55P03."""

import psycopg
import pytest
from client import Session, call, rows
from conftest import Server, once, wait_until
from psycopg.types.json import Jsonb

pytestmark = once

# Functions by the object that they need. Each is called on a new connection, which has cached no plans.
LOCKED = {
    # The call cannot queue the session, and `held` would mean that asking again is of no use.
    "_waiters": ("lease_acquire", "known", "other", True),
    "_groups": ("group_create", "new", 2),
    "_queues": ("group_resize", "g", 4),
    "_successions": ("session_open", "former", "1 h", False, "0 s", True),
    "_claims": ("queue_drop", "empty", True),
    "_dead_items": ("queue_drop", "empty", True),
    "_item_heads": ("queue_drop", "empty", True),
    "fence_seq": ("lease_acquire", "free", "session"),
    "_item_seq": ("item_add", "q", Jsonb(1)),
}
DRAWS = {
    "fence_seq": [
        ("lease_acquire", "free", "session"), ("lease_acquire_many", ["free"], "session"), ("lock_acquire", "lock", "host", "1 h"),
        ("execution_begin", "key", "session"), ("item_claim", "q", "session"), ("lease_acquire", "known", "other", True),
    ],
    "_item_seq": [("item_add", "q", Jsonb(1)), ("item_add_many", "q", [Jsonb(1), Jsonb(2)])],
}  # fmt: skip
LIMIT = "SET statement_timeout = '10 s'"


def set_up(conn):
    """Makes a session, a former session of another consumer, a group and queues."""
    session = Session(conn, "one", ttl="1 h")
    Session(conn, "former", ttl="1 h")
    call(conn, "group_create", "g", 2)
    for queue in ("q", "empty"):
        call(conn, "queue_create", queue)
    call(conn, "item_add", "q", Jsonb(1))
    # The first draw of a fence after a start of the server raises the sequence.
    session.take("known")
    session.other = Session(conn, "other", ttl="1 h").id
    return session


def is_refused(server, db, session, function, *args):
    """Returns whether a call was refused by `busy` or 55P03. A call that waits gets 57014."""
    args = [{"session": session.id, "other": session.other}.get(arg, arg) if isinstance(arg, str) else arg for arg in args]
    with server.connect(db) as conn:
        conn.execute(LIMIT)
        try:
            answer = rows(conn, function, *args)
        except psycopg.errors.LockNotAvailable:
            return True
        return getattr(answer[0], "reason", None) == "busy"


def waits(server, sql):
    return wait_until(lambda: server.query("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query = %s", sql) == [(1,)])


@pytest.mark.parametrize("name", LOCKED)
def test_nobody_waits_behind_who_waits(server, connect, db, background, name):
    conn, holder, locker = connect(), connect(), connect()
    session = set_up(conn)
    of_sequence = name in DRAWS
    with holder.transaction():
        holder.execute(f"SELECT nextval('eskit_lease.{name}')" if of_sequence else f"LOCK TABLE eskit_lease.{name} IN ACCESS SHARE MODE")
        sql = f"ALTER SEQUENCE eskit_lease.{name} CACHE 1" if of_sequence else f"VACUUM FULL eskit_lease.{name}"
        locking = background(locker.execute, sql)
        waits(server, sql)
        for one in DRAWS.get(name, [LOCKED[name]]):
            assert is_refused(server, db, session, *one), one
        assert session.heartbeat().alive
    locking.result()
    for one in DRAWS.get(name, [LOCKED[name]]):
        assert not is_refused(server, db, session, *one), one


def test_a_bulk_call_waits_once(connect):
    """The call waits for a lock once. If each of its batches waited, it would take 20 s."""
    conn, locker = connect(), connect(autocommit=False)
    session = set_up(conn)
    locker.execute("LOCK TABLE eskit_lease._waiters IN ACCESS EXCLUSIVE MODE")
    conn.execute(LIMIT)
    answers = rows(conn, "lease_acquire_many", [f"name {number}" for number in range(100_000)], session.id)
    assert {answer.reason for answer in answers} == {"busy"}
    locker.rollback()
    assert session.take("name 1")


def test_nobody_waits_behind_a_drop(server, connect, db, background):
    conn, holder, dropping = connect(), connect(), connect()
    session = set_up(conn)
    other = Session(holder, "holder", ttl="1 h")
    with holder.transaction():
        other.take("held")
        dropping.execute("SET statement_timeout = '60 s'")
        drop = background(dropping.execute, "DROP EXTENSION eskit_lease CASCADE")
        waits(server, "DROP EXTENSION eskit_lease CASCADE")
        for one in DRAWS["fence_seq"]:
            assert is_refused(server, db, session, *one), one
        for one in [*DRAWS["_item_seq"], ("session_open", "new"), ("group_create", "new", 2), ("queue_create", "new")]:
            # Whether these are refused depends on how far the drop has come.
            is_refused(server, db, session, *one)
        # The sweep answers that there is more to do later.
        with connect() as sweeper:
            sweeper.execute(LIMIT)
            assert call(sweeper, "session_sweep").more
        assert session.heartbeat().alive
        dropping.cancel()
        with pytest.raises(psycopg.errors.QueryCanceled):
            drop.result()
    assert session.take("free")
