"""What stats() counts of transactions: what they have committed, and nothing of what they have rolled back."""

import time

import psycopg
import pytest
from client import Session, call, rows, stat
from conftest import once, wait_until
from psycopg.types.json import Jsonb

pytestmark = once
COMMITTED = (
    "items_added", "items_claimed", "items_done", "items_failed", "items_dead",
    "executions_begun", "executions_finished", "executions_failed", "revocations", "forces",
)  # fmt: skip


CHANGES = ("sessions_opened", "sessions_closed", "sessions_expired", "grants", "takeovers", "hand_overs", "releases")


def counted(conn, names=COMMITTED):
    values = dict(conn.execute("SELECT name, value FROM eskit_lease.stats()").fetchall())
    return {name: values[name] for name in names}


def grown(conn, before):
    return {name: value - before[name] for name, value in counted(conn, before).items() if value != before[name]}


@pytest.fixture
def conn(connect):
    conn = connect()
    call(conn, "queue_create", "twice", 2, "0 s")
    call(conn, "queue_create", "once", 1)
    return conn


def stock(conn):
    """Items to claim, as many as one piece of work: a claim takes none that its own transaction has added."""
    call(conn, "item_add_many", "twice", [Jsonb(n) for n in range(4)])
    call(conn, "item_add", "once", Jsonb(1))
    return counted(conn)


def work(conn, session):
    """Makes each counter grow, except that of revocations. Returns what it adds to each counter."""
    call(conn, "item_add", "twice", Jsonb(1))
    call(conn, "item_add_many", "twice", [Jsonb(1), Jsonb(2)])
    items = rows(conn, "item_claim", "twice", session.id, 4)
    call(conn, "item_done", [item.id for item in items[:2]], items[0].fence)
    call(conn, "item_unclaim", [items[2].id], items[0].fence)
    assert call(conn, "item_fail", items[3].id, items[0].fence, "why")
    (dying,) = rows(conn, "item_claim", "once", session.id, 1)
    assert not call(conn, "item_fail", dying.id, dying.fence, "why")
    key = str(time.monotonic_ns())
    for end in ("execution_finish", "execution_fail"):
        fence = call(conn, "execution_begin", key + end, session.id).fence
        assert call(conn, end, key + end, fence, *(["why"] if end == "execution_fail" else []))
    assert call(conn, "lease_force_release", "r", call(conn, "lease_acquire", "r", session.id).fence, "why")
    return {
        "items_added": 3, "items_claimed": 5, "items_done": 2, "items_failed": 2, "items_dead": 1,
        "executions_begun": 2, "executions_finished": 1, "executions_failed": 1, "forces": 1,
    }  # fmt: skip


def test_each_is_counted_once_it_is_committed(conn):
    session, before = Session(conn, "c", ttl="60 s"), stock(conn)
    assert work(conn, session) == grown(conn, before)
    before = stock(conn)
    with conn.transaction():
        adds = work(conn, session)
        assert grown(conn, before) == {}
    assert grown(conn, before) == adds


def test_a_rollback_counts_nothing(conn):
    session, before = Session(conn, "c", ttl="60 s"), stock(conn)
    with conn.transaction(force_rollback=True):
        work(conn, session)
    assert grown(conn, before) == {}
    # Work that is rolled back to a savepoint, at any depth, does not count. Work around it counts, and so does work in
    # a released savepoint.
    with conn.transaction():
        call(conn, "item_add", "twice", Jsonb(1))
        with conn.transaction(force_rollback=True):
            call(conn, "item_add", "twice", Jsonb(2))
            with conn.transaction():
                work(conn, session)
        with conn.transaction(), conn.transaction():
            call(conn, "item_add_many", "twice", [Jsonb(3)] * 3)
    assert grown(conn, before) == {"items_added": 4}
    with pytest.raises(psycopg.errors.DivisionByZero), conn.transaction():
        work(conn, session)
        conn.execute("SELECT 1 / 0")
    assert grown(conn, before) == {"items_added": 4}


@pytest.mark.parametrize("worker", ["on", "off"])
def test_a_prepared_transaction_counts_when_it_is_committed(server, conn, connect, worker):
    server.set(eskit_lease__worker=worker)
    try:
        session, other, before = Session(conn, "c", ttl="60 s"), connect(), counted(conn)
        for end, adds in (("COMMIT", {"items_added": 3, "executions_begun": 1}), ("ROLLBACK", {})):
            conn.execute("BEGIN")
            call(conn, "item_add_many", "twice", [Jsonb(1)] * 3)
            call(conn, "execution_begin", end, session.id)
            conn.execute(f"PREPARE TRANSACTION 'counted {end} {worker}'")
            assert grown(other, before) == {}
            other.execute(f"{end} PREPARED 'counted {end} {worker}'")
            assert grown(other, before) == adds
            assert grown(conn, before) == adds, "once"
            before = counted(conn)
    finally:
        server.set(eskit_lease__worker=None)


def test_a_prepared_transaction_that_only_counts(conn, connect):
    """It has nothing else to tell at its end, or nothing but the position that it has drawn."""
    session, other, before = Session(conn, "c", ttl="60 s"), connect(), counted(conn)
    for drawn in (False, True):
        conn.execute("BEGIN")
        call(conn, "execution_begin", f"key {drawn}", session.id)
        if drawn:
            conn.execute("SELECT eskit_lease.position_next()")
        conn.execute(f"PREPARE TRANSACTION 'only counts {drawn}'")
        other.execute(f"COMMIT PREPARED 'only counts {drawn}'")
    assert grown(conn, before) == {"executions_begun": 2}


def test_what_many_transactions_count_at_once(conn, connect):
    """Prepared transactions are committed while other connections look at the counters: each counts once."""
    before, others = counted(conn), [connect() for _ in range(4)]
    for number, other in enumerate(others):
        other.execute("BEGIN")
        call(other, "item_add_many", "twice", [Jsonb(1)] * (number + 1))
        other.execute(f"PREPARE TRANSACTION 'at once {number}'")
    for number, other in enumerate(others):
        conn.execute(f"COMMIT PREPARED 'at once {number}'")
        for reader in others:
            counted(reader)
    assert grown(conn, before) == {"items_added": 10}


def test_the_death_of_a_claimer_counts(conn):
    before = counted(conn)
    call(conn, "item_add_many", "twice", [Jsonb(1)] * 3)
    for _ in range(2):
        dying = Session(conn, "dying", ttl="1 s")
        assert len(rows(conn, "item_claim", "twice", dying.id, 3)) == 3
        wait_until(lambda: dying.expired(conn))  # noqa: B023
        wait_until(lambda: not conn.execute("SELECT FROM eskit_lease._claims").rowcount)
    assert grown(conn, before) == {"items_added": 3, "items_claimed": 6, "items_dead": 3}


def test_a_revocation_counts(conn):
    before = counted(conn)
    call(conn, "group_create", "g", 4, "sticky", "1 s")
    first = Session(conn, "first", ttl="60 s").join("g")
    wait_until(lambda: len(first.assignment("g")) == 4)
    second = Session(conn, "second", ttl="60 s").join("g")
    wait_until(lambda: len(second.assignment("g")) == 2)
    assert grown(conn, before) == {"revocations": 2}


def change(conn, leader, follower):
    """Opens and closes sessions, and hands a lease over. Returns what it adds to each counter."""
    other = Session(conn, "other", ttl="60 s")
    other.take("free")
    assert other.release("free") and other.close()
    assert leader.release("r") and follower.holds("r")
    return {"sessions_opened": 1, "sessions_closed": 1, "grants": 1, "takeovers": 1, "hand_overs": 1, "releases": 2}


def test_changes_of_leases_and_sessions_count_once_they_are_committed(conn, connect):
    leader, follower, looker = Session(conn, "leader", ttl="60 s"), Session(conn, "follower", ttl="60 s"), connect()
    leader.take("r"), follower.queue("r")
    before, timed = counted(conn, CHANGES), spans(conn, "hand_over")
    with conn.transaction(force_rollback=True):
        change(conn, leader, follower)
    assert grown(conn, before) == {} and spans(conn, "hand_over") == timed
    with conn.transaction():
        adds = change(conn, leader, follower)
        assert grown(conn, before) == {}
    assert grown(looker, before) == adds
    # A prepared transaction hands the lease over when it is committed; until then the next session waits.
    for end, adds in (("ROLLBACK", {}), ("COMMIT", {"takeovers": 1, "hand_overs": 1, "releases": 1})):
        leader.acquire("r", queue=True)
        before, timed = counted(conn, CHANGES), spans(conn, "hand_over")
        conn.execute("BEGIN")
        assert follower.release("r")
        conn.execute(f"PREPARE TRANSACTION 'handed over {end}'")
        time.sleep(0.3)
        looker.execute(f"{end} PREPARED 'handed over {end}'")
        assert grown(looker, before) == adds
        after = spans(looker, "hand_over")
        assert after["inf"] - timed["inf"] == adds.get("hand_overs", 0) and after["200"] == timed["200"]


class HandOvers:
    """Tells by how much the counter of hand-overs and their histogram have grown."""

    def __init__(self, conn, group, timeout):
        self.conn, self.group = conn, group
        call(conn, "group_create", group, 2, "sticky", timeout, "0 s")
        self.known = self.now()

    def now(self):
        return {"counted": stat(self.conn, "hand_overs"), **spans(self.conn, "hand_over")}

    def took(self, *ranges):
        """Returns how many hand-overs were counted, and how many of them took at most so long."""
        before, self.known = self.known, self.now()
        return [self.known[name] - before[name] for name in ("counted", *ranges)]

    def join(self, consumer, partitions, ttl="60 s"):
        session = Session(self.conn, consumer, ttl=ttl).join(self.group)
        wait_until(lambda: session.owns(self.conn, self.group) == partitions)
        return session


def test_a_released_partition_is_handed_over_from_its_release_on(conn):
    overs = HandOvers(conn, "g", "60 s")
    first = overs.join("first", 2)
    assert overs.took("inf") == [0, 0], "no session had these partitions"
    second = overs.join("second", 0)
    (told,) = wait_until(lambda: [one for one in first.assignment("g") if one.state == "revoking"])
    with conn.transaction():
        assert call(conn, "lease_release", "g", told.fence)
        time.sleep(0.3)
        assert overs.took("inf") == [0, 0]
    assert second.owns(conn, "g") == 1 and overs.took("200", "inf") == [1, 0, 1]
    # Before a member joins, no session waits for the partitions.
    first.close(), second.close()
    overs.took()
    time.sleep(0.3)
    overs.join("third", 2)
    assert overs.took("200", "inf") == [2, 2, 2]


def test_an_overdue_partition_is_handed_over_from_its_deadline_on(conn):
    overs = HandOvers(conn, "g", "2 s")
    overs.join("first", 2)
    overs.join("second", 1)
    assert overs.took("1000", "inf") == [1, 1, 1]


def test_the_partition_of_a_dead_owner_is_handed_over_from_its_deadline_on(conn, no_worker):
    overs = HandOvers(conn, "g", "60 s")
    first = overs.join("first", 2, ttl="1 s")
    second = Session(conn, "second", ttl="60 s").join("g")
    wait_until(lambda: first.expired(conn))
    time.sleep(0.3)
    assert overs.took("inf") == [0, 0]
    call(conn, "session_sweep")
    wait_until(lambda: len(second.assignment("g")) == 2)
    assert overs.took("200", "inf") == [2, 0, 2]


def spans(conn, name):
    found = dict(conn.execute(f"SELECT name, value FROM eskit_lease.stats() WHERE name LIKE '{name}\\_ms\\_le\\_%'").fetchall())
    return {end.rpartition("_")[2]: value for end, value in found.items()}


def test_hand_overs_are_counted_by_their_time(conn, connect):
    before = spans(conn, "hand_over")
    first, second, third = (Session(conn, name, ttl=ttl) for name, ttl in (("first", "60 s"), ("second", "1 s"), ("third", "60 s")))
    first.take("r"), second.queue("r"), third.queue("r")
    with conn.transaction():
        first.release("r")
        time.sleep(0.3)
    after = spans(conn, "hand_over")
    # The span is from the release to the commit, because the next session waits for the commit.
    assert after["inf"] == before["inf"] + 1 and after["200"] == before["200"] and after["5000"] == before["5000"] + 1
    wait_until(lambda: third.holds("r"), timeout=20)
    last = spans(conn, "hand_over")
    assert last["inf"] == after["inf"] + 1 and last["5000"] == after["5000"] + 1
    # A rollback is no hand-over.
    second = Session(conn, "second", ttl="60 s").queue("r")
    with conn.transaction(force_rollback=True):
        third.release("r")
    assert spans(conn, "hand_over") == last
    ends = list(last.values())
    passes = spans(conn, "pass")
    assert sorted(last) == sorted(passes) and passes["inf"] >= passes["1"] and passes["inf"] > 0 and max(ends) == last["inf"]


def test_the_oldest_dirty_resource_is_told(conn, connect):
    """Another transaction has locked the lease, so the worker tries again and again. The age counts from
    the time when the resource became dirty."""
    first, waiter, other = Session(conn, "first", ttl="60 s"), Session(conn, "waiter", ttl="60 s"), connect(autocommit=False)
    assert call(other, "lease_acquire", "r", first.id).granted
    assert not call(conn, "lease_acquire", "r", waiter.id, True).granted
    wait_until(lambda: stat(conn, "oldest_dirty_ms") > 2_500, timeout=30)
    other.rollback()
    wait_until(lambda: waiter.holds("r"))
    wait_until(lambda: stat(conn, "oldest_dirty_ms") == 0)
