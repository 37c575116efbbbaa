"""Races between many clients: exactly one owner, no client waits for another, and the order of the line holds."""

import itertools
import random
import threading
import time
from concurrent.futures import wait

import pytest
from client import Session, call
from conftest import wait_until

ROUNDS, RACERS = 100, 8


def test_race_for_a_fresh_name(server, db, connect, background):
    sessions = [Session(connect(), f"racer {i}", ttl="60 s") for i in range(RACERS)]
    watcher = connect()
    start = threading.Barrier(RACERS)

    def race(session):
        answers = []
        for i in range(ROUNDS):
            start.wait(timeout=60)
            asked_at = time.monotonic()
            answers.append((session.acquire(f"fresh {i}"), time.monotonic() - asked_at))
        return answers

    races = [background(race, session) for session in sessions]
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype <> 'extend' AND pid = ANY (%s)"
    lock_waits = 0
    while wait(races, timeout=0.002).not_done:
        lock_waits += watcher.execute(waiting, ([session.conn.info.backend_pid for session in sessions],)).fetchone()[0]
    rounds = list(zip(*[done.result() for done in races], strict=True))
    for i, answers in enumerate(rounds):
        reasons = sorted(answer.reason for answer, _ in answers)
        assert reasons.count("granted") == 1, (i, reasons)
        assert set(reasons) <= {"granted", "busy", "held"}, (i, reasons)
    assert lock_waits == 0, "a client waited for a lock"
    slowest = max(took for answers in rounds for _, took in answers)
    print(f"slowest answer {slowest * 1000:.1f} ms")
    fences = watcher.execute("SELECT fence FROM eskit_lease.leases ORDER BY fence").fetchall()
    assert len(set(fences)) == ROUNDS


def test_many_fresh_names_at_a_time(connect, background):
    """Several clients acquire the same new names, each in an order of its own, and some roll back: no slot of a name
    ever has two rows."""
    names, rounds = [f"new {n}" for n in range(3_000)], 3
    watcher = connect()
    call(watcher, "semaphore_create", "permits", 100)

    def acquire(number):
        chance, session = random.Random(number), Session(connect(autocommit=False), f"racer {number}", ttl="60 s")
        session.conn.commit()
        for _ in range(rounds):
            order = chance.sample(names, len(names))
            for at in range(0, len(order), 100):
                session.conn.execute("SAVEPOINT s")
                session.conn.execute("SELECT FROM eskit_lease.lease_acquire_many(%s, %s)", (order[at : at + 100], session.id))
                session.conn.execute("SELECT FROM eskit_lease.lease_acquire('permits', %s)", (session.id,))
                if chance.random() < 0.3:
                    session.conn.execute("ROLLBACK TO s")
                if chance.random() < 0.5:
                    session.conn.rollback()
                elif chance.random() < 0.5:
                    session.conn.commit()
            session.conn.commit()
            session.conn.execute("SELECT FROM eskit_lease.lease_release_many(%s, %s)", (names, session.id))
            session.conn.commit()

    done = [background(acquire, number) for number in range(4)]
    twice = "SELECT resource, slot FROM eskit_lease._leases GROUP BY resource, slot HAVING count(*) > 1"
    while wait(done, timeout=0.05).not_done:
        assert not watcher.execute(twice).fetchall()
    for racer in done:
        racer.result()
    assert not watcher.execute(twice).fetchall()
    assert watcher.execute("SELECT count(*) FROM eskit_lease._leases WHERE slot = 0").fetchone()[0] >= len(names) * 0.9


OPEN = {
    "first acquire": lambda conn, session: call(conn, "lease_acquire", "r", session.id),
    "update": lambda conn, session: conn.execute("UPDATE eskit_lease._leases SET slot = slot WHERE resource = 'r'"),
    "fence": lambda conn, session: call(conn, "fence_check", "r", session.fences["r"]),
    "release": lambda conn, session: call(conn, "lease_release", "r", session.fences["r"]),
    "close": lambda conn, session: call(conn, "session_close", session.id),
}


@pytest.mark.parametrize("ending", ["open", "prepared"])
@pytest.mark.parametrize("what", OPEN)
def test_try_answers_at_once(connect, db, what, ending):
    conn, other = connect(autocommit=False), connect()
    contender, rival = Session(other, "contender", ttl="60 s"), Session(other, "rival", ttl="60 s")
    if what != "first acquire":
        contender.take("r")
    OPEN[what](conn, contender)
    if ending == "prepared":
        conn.execute(f"PREPARE TRANSACTION '{db}'")
        conn.rollback()
    try:
        answers = []
        for queue in (False, True) * 3:
            asked_at = time.monotonic()
            answers.append((rival.acquire("r", queue).reason, time.monotonic() - asked_at))
        assert {reason for reason, _ in answers} <= {"busy", "held", "queued"}, answers
        assert min(took for _, took in answers) < 0.05, answers
    finally:
        if ending == "prepared":
            other.execute(f"ROLLBACK PREPARED '{db}'")
        else:
            conn.rollback()


@pytest.mark.parametrize("ending", ["open", "prepared"])
def test_bulk_acquire_leaves_other_names_free(connect, db, ending):
    conn, other = connect(autocommit=False), connect()
    bulk, rival = Session(other, "bulk", ttl="120 s"), Session(other, "rival", ttl="120 s")
    rival.take("known")
    rival.release("known")
    granted = "SELECT count(*) FILTER (WHERE granted) FROM eskit_lease.lease_acquire_many(%s, %s)"
    assert conn.execute(granted, ([f"bulk {i}" for i in range(100_000)], bulk.id)).fetchone() == (100_000,)
    if ending == "prepared":
        conn.execute(f"PREPARE TRANSACTION '{db}'")
        conn.rollback()
    try:
        rival.take("known")
        answers = []
        for i in range(500):  # enough to meet any guard that a name could share with those 100,000 by its hash
            asked_at = time.monotonic()
            assert rival.acquire(f"new {i}").granted
            answers.append(time.monotonic() - asked_at)
        assert sorted(answers)[len(answers) // 2] < 0.05
        assert rival.acquire("bulk 77777").reason == "busy"
        assert rival.acquire("bulk 77777", queue=True).reason == "queued"
    finally:
        if ending == "prepared":
            other.execute(f"ROLLBACK PREPARED '{db}'")
        else:
            conn.rollback()
    wait_until(lambda: rival.holds("bulk 77777"))
    assert rival.acquire("bulk 1").granted, "what was rolled back is free"


def test_polling_bargers_never_overtake_a_waiter(server, db, connect, background):
    """Five connections poll as forty sessions, while four sessions wait in line; the lease changes hands 200 times."""
    holder = Session(connect(), "holder", ttl="60 s")
    holder.take("r")
    waiters = [Session(connect(), f"waiter {i}", ttl="60 s") for i in range(4)]
    for waiter in waiters:
        waiter.queue("r")
    stop = threading.Event()

    def barge(i):
        conn = connect()
        bargers = [Session(conn, f"barger {i}.{j}", ttl="60 s") for j in range(8)]
        answers = set()
        for barger in itertools.cycle(bargers):
            answer = barger.acquire("r")
            answers.add(answer.reason)
            if stop.is_set() or answer.granted:
                return answers

    barging = [background(barge, i) for i in range(5)]
    assert holder.release("r")
    order, fences = [], [holder.fences["r"]]
    while len(order) < 200:
        turn = wait_until(lambda: next((waiter for waiter in waiters if waiter.holds("r")), None))
        order.append(turn)
        fences.append(turn.fences["r"])
        assert turn.release("r")
        turn.queue("r")  # never granted at once: three are in line
    stop.set()
    reasons = set().union(*(done.result() for done in barging))
    assert "granted" not in reasons, reasons
    assert reasons <= {"held", "awaited", "busy"}
    assert fences == sorted(set(fences)), "fences rise with every change of owner"
    assert order[4:] == order[:-4], "first come, first served"


def test_who_asks_while_it_is_served_waits_for_nothing_more(connect, background):
    """Another session hands over between a caller's look at the lease and the caller's look at its place in line. A
    second place would give the caller the lease again after its release."""
    left = "SELECT (SELECT count(*) FROM eskit_lease._waiters WHERE session = %s) + (SELECT count(*) FROM eskit_lease._leases WHERE session = %s)"

    def go_on_asking(session):
        for _ in range(2 * ROUNDS):
            while not (answer := call(session.conn, "lease_acquire", "r", session.id, True)).granted:
                pass
            assert call(session.conn, "lease_release", "r", answer.fence)
            assert session.conn.execute(left, (session.id, session.id)).fetchone() == (0,)

    for asked in [background(go_on_asking, Session(connect(), f"asks {i}", ttl="60 s")) for i in range(3)]:
        asked.result()


def queue_behind_oneself(connect):
    """Returns a holder with a place in line: it queued while its own release was open, and the release was rolled
    back."""
    conn, other = connect(), connect(autocommit=False)
    holder = Session(conn, "holder", ttl="60 s")
    fence = holder.take("r")
    assert call(other, "lease_release", "r", fence)
    assert call(conn, "lease_acquire", "r", holder.id, True).reason == "queued"
    other.rollback()
    return conn, holder, fence


def test_who_is_refused_keeps_nobody_from_the_lease(connect):
    """A place that an open transaction gives up is passed over: the next waiter has the lease at once, not when that
    transaction ends."""
    conn, cancelling, asking = connect(), connect(autocommit=False), connect(autocommit=False)
    holder, first, second = (Session(conn, name, ttl="60 s") for name in ("holder", "first", "second"))
    holder.take("r")
    first.queue("r")
    second.queue("r")
    assert call(cancelling, "lease_cancel", "r", first.id)
    assert holder.release("r")
    # A commit of the cancel leaves the session no place, so it is not told that it has one.
    assert call(asking, "lease_acquire", "r", first.id, False).reason == "held"
    assert second.holds("r")
    cancelling.commit()
    asking.rollback()


HELD = "SELECT count(*) FROM eskit_lease.leases WHERE resource = 'r' AND state = 'held'"


def test_who_is_told_that_it_holds_waits_no_more(connect, no_worker):
    conn, holder, fence = queue_behind_oneself(connect)
    assert call(conn, "lease_acquire", "r", holder.id, True).reason == "already_held"
    assert conn.execute("SELECT count(*) FROM eskit_lease.waiters").fetchone() == (0,)
    assert call(conn, "lease_release", "r", fence)
    assert conn.execute(HELD).fetchone() == (0,)


def test_what_is_taken_by_force_does_not_come_back(connect, no_worker):
    conn, _, fence = queue_behind_oneself(connect)
    assert call(conn, "lease_force_release", "r", fence, "test")
    assert conn.execute(HELD).fetchone() == (0,)


def test_an_index_is_made_anew_while_names_are_acquired(server, db, connect, background):
    """Transactions that began before know only the old index."""
    over, admin = threading.Event(), connect()
    sessions = [Session(connect(), f"racer {i}", ttl="1 h") for i in range(4)]

    def race(session):
        for i in itertools.count():
            if over.is_set():
                return i
            with session.conn.transaction():
                session.conn.execute("SELECT 1")
                answer = session.acquire(f"made anew {i % 3}")
            if answer.granted:
                assert session.release(f"made anew {i % 3}")

    races = [background(race, session) for session in sessions]
    try:
        for _ in range(5):
            for table in ("_leases", "_waiters", "_sessions"):
                admin.execute(f"REINDEX TABLE CONCURRENTLY eskit_lease.{table}")
    finally:
        over.set()
    assert all(done.result() > 0 for done in races)


def test_what_a_transaction_has_closed_is_closed_for_it(server, db, connect):
    """A caller that was refused before has the holder's name cached, which does not say whether the holder lives."""
    conn = connect()
    closed, other = Session(conn, "closed", ttl="1 h"), Session(conn, "other", ttl="1 h")
    names = [f"of the closed {i}" for i in range(1_500)]
    conn.execute("SELECT count(*) FROM eskit_lease.lease_acquire_many(%s, %s)", (names, closed.id))
    assert other.acquire(names[0]).reason == "held"
    with conn.transaction():
        assert closed.close()
        # More leases than a close frees: the worker frees the rest.
        (left,) = conn.execute("SELECT min(resource) FROM eskit_lease._leases WHERE session = %s", (closed.id,)).fetchone()
        assert closed.acquire(left).reason == "expired"
        assert other.acquire(left).granted
    assert other.renew(left).held
