"""What a hostile reader found in grace, and in sessions that end before they are committed."""

import pytest
from client import Session, call
from conftest import Server, wait_until
from crossing import opened, rows_of, waits, worker_passes
from test_attacks import is_granted


@pytest.mark.parametrize("way", ["close", "take-over", "close of the grace"])
def test_a_fence_that_was_checked_around_a_grace(connect, background, way):
    """While the transaction that checked the fence is open, no rival gets the lease, whether the holder or its grace
    has it by then."""
    holder, rival, work, conn = Session(connect(), "one", "60 s"), Session(connect(), "rival", "60 s"), connect(), connect()
    fence = holder.take("r")
    work.autocommit = False
    if way == "close of the grace":
        call(work, "fence_check", "r", fence)
    assert call(conn, "lease_release", "r", fence, "60 s")
    if way != "close of the grace":
        call(work, "fence_check", "r", fence)
        assert holder.acquire("r").reason == "already_held"
    (private,) = conn.execute("SELECT min(session::text) FROM eskit_lease.sessions WHERE private").fetchone()
    if way == "take-over":
        heir = Session(conn, "one", "60 s", takeover=True)
        assert not heir.acquire("r").granted
    else:
        ending = background(call, conn, "session_close", private or holder.id)
        watcher = connect()
        wait_until(lambda: ending.done() or waits(watcher, conn))
    assert not rival.acquire("r").granted
    work.commit()
    if way == "take-over":
        is_granted(conn, heir, "r")
    else:
        assert ending.result()
        assert rival.take("r") > fence


def test_a_grace_that_is_over_before_it_is_committed(connect):
    holder, waiter, conn, giving = Session(connect(), ttl="60 s"), Session(connect(), ttl="60 s"), connect(), connect(autocommit=False)
    fence = holder.take("r")
    waiter.queue("r")
    assert call(giving, "lease_release", "r", fence, "1 s")
    expired = "SELECT 1 FROM eskit_lease.sessions WHERE private AND state = 'expired'"
    wait_until(lambda: giving.execute(expired).fetchone())
    worker_passes(conn)
    giving.commit()
    is_granted(conn, waiter, "r")


def test_a_session_that_is_over_before_it_is_committed(connect):
    conn = connect()
    late = Session(connect(autocommit=False), "late", "1 s")
    wait_until(lambda: late.expired(late.conn))
    worker_passes(conn)
    late.conn.commit()
    wait_until(lambda: not rows_of(conn, "_sessions", "session", late))


def test_a_grace_of_another_transaction_is_not_waited_for(connect):
    holder, closing = Session(connect(options="-c lock_timeout=20s"), ttl="60 s"), connect(autocommit=False)
    assert call(holder.conn, "lease_release", "r", holder.take("r"), "60 s")
    (private,) = closing.execute("SELECT session FROM eskit_lease.sessions WHERE private").fetchone()
    assert call(closing, "session_close", private)
    assert holder.acquire("r").reason == "busy"
    closing.rollback()
    assert holder.acquire("r").reason == "already_held"


def test_a_restart_leaves_graces_and_successions_their_end():
    server = Server("e2e-grace-attacks")
    try:
        server.query("CREATE EXTENSION eskit_lease")
        conn, granting = server.connect(), server.connect()
        fence = call(conn, "lock_acquire", "lock", "owner", "60 s").fence
        assert call(conn, "lease_release", "lock", fence, "3 s")
        granting.autocommit = False
        old = opened(granting, "me", "60 s")
        old.take("r")
        Session(conn, "me", "60 s", takeover=True)
        assert rows_of(conn, "_successions", "session", old)
        server.restart()
        with server.connect() as conn:
            wait_until(lambda: not call(conn, "lease_renew", "lock", fence).held, timeout=20)
            wait_until(lambda: not rows_of(conn, "_successions", "session", old))
    finally:
        server.stop()
