"""What a hostile reader found in take-over and semaphores: second holders, lost wake-ups, forbidden waits."""

from threading import Event

import pytest
from client import Session, call, rows, stat
from conftest import wait_until
from crossing import opened, prepare, rows_of, waits, worker_passes, worker_serves_others
from psycopg.types.json import Jsonb
from test_attacks import is_granted


def two_permits(connect, name="s"):
    """Returns the holders of both permits of a semaphore, in the order of their slots."""
    conn = connect()
    call(conn, "semaphore_create", name, 2)
    holders = [Session(connect(), f"holder {i}", attach=True) for i in range(2)]
    return conn, *sorted(holders, key=lambda holder: holder.acquire(name).slot)


def test_a_shrunk_semaphore_counts_fenced_slots(connect):
    conn, first, beyond = two_permits(connect)
    work = connect(autocommit=False)
    call(work, "fence_check", "s", beyond.fences["s"])
    call(conn, "semaphore_resize", "s", 1)
    beyond.conn.close()
    wait_until(lambda: beyond.expired(conn))
    assert first.release("s")
    waiter = Session(connect(), ttl="60 s").queue("s")
    worker_passes(conn)
    assert not waiter.holds("s")
    work.commit()
    is_granted(conn, waiter, "s")


def test_a_successor_gets_no_permit_beyond_those_there_are(connect):
    conn, first, second = two_permits(connect)
    assert second.release("s")
    old = opened(connect(autocommit=False), "me", "60 s")
    assert old.acquire("s").slot == 1
    heir = Session(connect(), "me", "60 s", takeover=True)
    call(conn, "semaphore_resize", "s", 1)
    old.conn.commit()
    wait_until(lambda: not rows_of(conn, "_leases", "session", old))
    assert first.holds("s") and not heir.holds("s")
    assert first.release("s")
    assert Session(conn, "another", "60 s").take("s")


def test_what_a_predecessor_has_claimed_is_free_though_not_all_is_inherited_yet(connect):
    """The worker frees the claimed item, and is done with the predecessor once the rest is inherited."""
    conn, work = connect(), connect(autocommit=False)
    old, hungry = Session(connect(), "me", "60 s"), Session(conn, "hungry", "60 s")
    call(conn, "queue_create", "q")
    item = call(conn, "item_add", "q", Jsonb("x"))
    assert [claimed.id for claimed in rows(old.conn, "item_claim", "q", old.id)] == [item]
    hungry.revision = hungry.heartbeat().revision
    assert rows(conn, "item_claim", "q", hungry.id) == []
    call(work, "fence_check", "r", old.take("r"))
    heir = Session(connect(), "me", "60 s", takeover=True)
    assert hungry.wait("10 s").reason == "changed"
    assert [claimed.id for claimed in rows(conn, "item_claim", "q", hungry.id)] == [item]
    work.commit()
    is_granted(conn, heir, "r")
    wait_until(lambda: not rows_of(conn, "_successions", "session", old))


def test_a_successor_that_drains_is_in_nobodys_way(connect):
    """A draining successor gets nothing new, not even what it would inherit."""
    conn, work, old = connect(), connect(autocommit=False), Session(connect(), "me", "60 s")
    call(work, "fence_check", "r", old.take("r"))
    waiter = Session(connect(), "waiter", "60 s").queue("r")
    heir = Session(connect(), "me", "60 s", takeover=True)
    assert call(conn, "session_drain", heir.id)
    work.commit()
    is_granted(conn, waiter, "r")


def test_a_successor_that_is_just_closing_inherits_nothing(connect):
    """The successor's close has already looked for what the session has, and would leave behind anything inherited
    later."""
    conn, releasing, closing = connect(), connect(autocommit=False), connect(autocommit=False)
    old, holder = Session(conn, "me", "60 s"), Session(conn, "holder", "60 s")
    holder.take("r")
    old.queue("r")
    assert call(releasing, "lease_release", "r", holder.fences["r"])
    heir = Session(connect(), "me", "60 s", takeover=True)
    assert call(closing, "session_close", heir.id)
    releasing.rollback()
    worker_passes(conn)
    closing.commit()
    left_in = ("_waiters", "_sessions")
    wait_until(lambda: not any(rows_of(conn, table, "session", session) for table in left_in for session in (old, heir)))


def test_two_takeovers_at_once_leave_one_session(connect, background):
    old, watcher = Session(connect(), "me", "60 s"), connect()
    old.take("r")
    first, conn = Session(connect(autocommit=False), "me", "60 s", takeover=True), connect()
    opening = background(Session, conn, "me", "60 s", takeover=True)
    wait_until(lambda: waits(watcher, conn))
    first.conn.commit()
    second = opening.result()
    assert not old.heartbeat().alive and not first.heartbeat().alive
    assert second.heartbeat().alive
    is_granted(watcher, second, "r")


def test_two_predecessors_with_a_permit_each(connect):
    """The successor gets one permit, and the other one is free for any session."""
    conn = connect()
    call(conn, "semaphore_create", "s", 2)
    old = [Session(conn, "me", "60 s") for _ in range(2)]
    assert all(session.take("s") for session in old)
    heir = Session(connect(), "me", "60 s", takeover=True)
    assert heir.acquire("s").reason == "already_held"
    wait_until(lambda: not conn.execute("SELECT 1 FROM eskit_lease._successions").fetchone(), timeout=20)
    assert not any(rows_of(conn, "_leases", "session", session) for session in old)
    Session(connect(), "other", "60 s").take("s")


@pytest.mark.parametrize("order", [False, True])
def test_a_place_for_what_a_successor_has_is_in_nobodys_way(connect, no_worker, order):
    """The order in which the successor inherits the lease and the place does not matter."""
    conn = connect()
    call(conn, "semaphore_create", "s", 2)
    old, other, waiter = [Session(conn, "me", "60 s") for _ in range(2)], Session(conn, "other", "60 s"), Session(conn, ttl="60 s")
    old.sort(key=lambda session: session.id, reverse=order)
    for resource in ("s", "r"):
        old[0].take(resource)
        if resource == "s":
            other.take("s")
        old[1].queue(resource)
        waiter.queue(resource)
    heir = Session(conn, "me", "60 s", takeover=True)
    assert heir.acquire("s").reason == heir.acquire("r").reason == "already_held"
    assert other.release("s")
    wait_until(lambda: waiter.acquire("s").granted, timeout=20)
    assert heir.release("r")
    wait_until(lambda: waiter.acquire("r").granted, timeout=20)


@pytest.mark.parametrize("crossing", ["granted", "release rolled back"])
def test_a_stranger_gets_nothing_that_crosses_a_takeover(connect, crossing):
    old, stranger, watcher = opened(connect(autocommit=False), "me", "60 s"), Session(connect(), "stranger", "60 s"), connect()
    old.take("r")
    if crossing != "granted":
        old.conn.commit()
        assert old.release("r")
    heir = Session(connect(), "me", "60 s", takeover=True)
    stranger.queue("r")
    old.conn.commit() if crossing == "granted" else old.conn.rollback()
    is_granted(watcher, heir, "r")
    assert not stranger.holds("r")


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_a_place_is_not_lost_to_a_look_that_crosses_the_end_of_a_takeover(connect, background, end):
    """A look at the line sees places as they were when it began, and checks afterwards which sessions live. Formerly,
    some looks passed over the place of a session that was just taken over, or whose take-over was just rolled back, and
    gave the lease to the next in line."""
    conn, done = connect(), Event()

    def sweep():
        sweeper = connect()
        while not done.is_set():
            call(sweeper, "session_sweep")

    sweeping = background(sweep)
    try:
        for turn in range(200):
            holder, old, behind = (Session(conn, name, "60 s") for name in ("holder", "me", "behind"))
            holder.take("r")
            old.queue("r")
            behind.queue("r")
            taking = connect(autocommit=False)
            heir = Session(taking, "me", "60 s", takeover=True)
            if turn % 2:
                prepare(taking, "taking over")
            holder.release("r")
            (conn if turn % 2 else taking).execute(f"{end} PREPARED 'taking over'" if turn % 2 else end)
            taking.close()
            one = heir if end == "COMMIT" else old
            is_granted(conn, one, "r")
            for session in (behind, one, holder):
                call(conn, "session_close", session.id)
    finally:
        done.set()
    sweeping.result()


def test_a_prepared_takeover_keeps_its_predecessor_ending(connect):
    """The predecessor goes on ending while other prepared transactions end, though the worker then looks for sessions
    to thaw."""
    old, work, conn = Session(connect(), "me", "60 s"), connect(autocommit=False), connect()
    call(work, "fence_check", "r", old.take("r"))  # so that the take-over cannot get the session's guard
    taking = connect(autocommit=False)
    heir = Session(taking, "me", "60 s", takeover=True)
    prepare(taking, "taking over")
    assert old.heartbeat().reason == "closing"
    for turn in range(2):
        before = stat(conn, "rescans")
        Session(taking, "other", "60 s")
        prepare(taking, f"other {turn}")
        conn.execute(f"COMMIT PREPARED 'other {turn}'")
        wait_until(lambda: stat(conn, "rescans") > before)  # noqa: B023
    assert old.heartbeat().reason == "closing"
    conn.execute("COMMIT PREPARED 'taking over'")
    work.commit()
    is_granted(conn, heir, "r")


def test_a_prepared_takeover_does_not_stop_the_worker(connect):
    """The prepared take-over has changed a succession row that the worker is about to delete."""
    old, taking, conn = opened(connect(autocommit=False), "me", "60 s"), connect(autocommit=False), connect()
    old.take("r")
    Session(connect(), "me", "60 s", takeover=True)
    assert rows_of(conn, "_successions", "session", old)
    Session(taking, "me", "60 s", takeover=True)
    prepare(taking, "taking over again")
    old.conn.rollback()
    worker_serves_others(connect)
    conn.execute("ROLLBACK PREPARED 'taking over again'")


def test_a_successor_that_is_just_joining_does_not_stop_the_worker(connect):
    """The successor has an uncommitted membership in the group in which it is to inherit one."""
    conn = connect()
    call(conn, "group_create", "g", 4)
    old = opened(connect(autocommit=False), "me", "60 s").join("g")
    heir = opened(connect(autocommit=False), "me", "60 s", takeover=True).join("g")
    old.conn.commit()
    worker_serves_others(connect)
    heir.conn.rollback()
    wait_until(lambda: heir.owns(conn, "g") == 4)


def test_takeovers_of_the_same_groups_wait_for_nobody(connect):
    conn, holding = connect(), connect(autocommit=False)
    for group in ("g1", "g2"):
        call(conn, "group_create", group, 4)
    for consumer, groups in (("a", ("g1", "g2")), ("b", ("g2", "g1"))):
        sessions = sorted((Session(conn, consumer, "60 s") for _ in range(2)), key=lambda session: session.id)
        for session, group in zip(sessions, groups, strict=True):
            session.join(group)
    call(holding, "group_alter", "g1", None, "9 s")
    heirs = [Session(connect(options="-c lock_timeout=20s"), consumer, "60 s", takeover=True) for consumer in "ab"]
    holding.commit()
    for group in ("g1", "g2"):
        wait_until(lambda: all(heir.assignment(group) for heir in heirs))  # noqa: B023


def test_a_close_and_a_takeover_of_many_leases_do_not_deadlock(connect, background):
    old, work, watcher = Session(connect(), "me", "60 s"), connect(autocommit=False), connect()
    many = "SELECT count(*) FROM eskit_lease.lease_acquire_many(ARRAY(SELECT 'l' || i FROM generate_series(1, 1001) i), %s) WHERE granted"
    assert watcher.execute(many, (old.id,)).fetchone() == (1001,)
    call(work, "fence_check", "l1", old.acquire("l1").fence)
    closing, taking = connect(), connect()
    close = background(call, closing, "session_close", old.id)
    wait_until(lambda: waits(watcher, closing))
    take = background(Session, taking, "me", "60 s", takeover=True)
    wait_until(lambda: waits(watcher, taking))
    work.commit()
    assert close.result() in (True, False)
    assert take.result().heartbeat().alive


def test_a_semaphore_that_is_dropped_during_an_acquire_leaves_a_plain_name(connect):
    dropping, holder, waiter = connect(autocommit=False), Session(connect(), ttl="60 s"), Session(connect(), ttl="60 s")
    call(holder.conn, "semaphore_create", "s", 1)
    call(dropping, "semaphore_drop", "s")
    holder.acquire("s")
    dropping.commit()
    holder.take("s")
    waiter.queue("s")
    assert holder.release("s")
    is_granted(holder.conn, waiter, "s")


def test_the_history_tells_of_what_an_heir_did_not_live_to_get(connect):
    """A fenced transaction kept the lease from the heir, which is dead when a stranger gets the lease. The history
    still shows that the former session lost it by the take-over."""
    conn, fenced = connect(), connect()
    former = Session(fenced, "me", "60 s")
    fence = former.take("r")
    with fenced.transaction():
        former.check("r")
        heir = Session(conn, "me", "1 s", takeover=True)
        stranger = Session(conn, "stranger", "60 s").queue("r")
        wait_until(lambda: not heir.heartbeat().alive, pause=1.5)
    wait_until(lambda: stranger.holds("r"))
    lost = conn.execute("SELECT event, fence, next_consumer FROM eskit_lease.history WHERE resource = 'r'").fetchall()
    assert lost == [("taken_over", fence, "stranger")]
