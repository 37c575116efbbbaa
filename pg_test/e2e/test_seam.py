"""The seam between rows and shared memory: two crossing transactions never leave a waiter beside a free resource."""

import psycopg
import pytest
from client import Session, call, stat
from conftest import Server, wait_until


@pytest.fixture
def pair(connect):
    """Two sessions, each over a connection that needs a commit."""
    conns = [connect(autocommit=False) for _ in range(2)]
    sessions = [Session(conn, name, ttl="120 s") for conn, name in zip(conns, ("holder", "waiter"), strict=True)]
    for conn in conns:
        conn.commit()
    return sessions


def granted_in_the_end(watcher, session, resource):
    """Waits for a grant without a call: the worker must make it."""
    found = "SELECT fence FROM eskit_lease.leases WHERE resource = %s AND session = %s AND state = 'held'"
    return wait_until(lambda: watcher.execute(found, (resource, session.id)).fetchone())[0]


@pytest.mark.parametrize("first", ["release", "enqueue"])
def test_uncommitted_enqueue_crosses_a_release(connect, pair, first):
    holder, waiter = pair
    holder.take("r")
    holder.conn.commit()
    waiter.queue("r")
    holder.release("r")
    for session in (holder, waiter) if first == "release" else (waiter, holder):
        session.conn.commit()
    assert granted_in_the_end(connect(), waiter, "r") > holder.fences["r"]


@pytest.mark.parametrize("how", ["rollback", "rollback to savepoint", "connection lost"])
def test_grant_that_is_rolled_back_while_another_queues_behind_it(connect, pair, how):
    holder, waiter = pair
    if how == "rollback to savepoint":
        with holder.conn.transaction():
            with holder.conn.transaction(force_rollback=True):
                assert holder.acquire("r").granted
                assert waiter.acquire("r").reason == "busy"
                waiter.queue("r")
                waiter.conn.commit()
            granted_in_the_end(connect(), waiter, "r")  # although the outer transaction is open
        return
    assert holder.acquire("r").granted
    assert waiter.acquire("r").reason == "busy"
    waiter.queue("r")
    waiter.conn.commit()
    if how == "rollback":
        holder.conn.rollback()
    else:
        connect().execute("SELECT pg_terminate_backend(%s)", (holder.conn.info.backend_pid,))
    granted_in_the_end(connect(), waiter, "r")


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_takeover_skipped_because_of_a_fenced_transaction(connect, end, waits):
    leader, follower = Session(connect(), "leader", ttl="2 s"), Session(connect(), "follower", ttl="120 s")
    leader.take("r")
    worker = connect(autocommit=False)
    call(worker, "fence_check", "r", leader.fences["r"])
    if waits:
        follower.queue("r")
    wait_until(lambda: leader.expired(follower.conn))
    passes = stat(follower.conn, "sweeps")
    wait_until(lambda: stat(follower.conn, "sweeps") >= passes + 2)  # the worker has tried
    assert follower.acquire("r").reason == ("queued" if waits else "busy")
    assert not follower.holds("r")
    # No fenced transaction begins after the deadline.
    with pytest.raises(psycopg.Error) as refused:
        call(connect(), "fence_check", "r", leader.fences["r"])
    assert refused.value.sqlstate == "LF001"
    getattr(worker, end)()
    if waits:
        granted_in_the_end(connect(), follower, "r")
    assert follower.take("r") > leader.fences["r"]


def test_enqueue_crosses_the_cancel_and_the_close_of_the_first_in_line(connect, pair):
    holder, waiter = pair
    first = Session(connect(autocommit=False), "first", ttl="120 s")
    holder.take("r")
    first.conn.commit()
    holder.conn.commit()
    first.queue("r")
    first.conn.commit()
    waiter.queue("r")
    holder.release("r")  # hands over to the first waiter, whose close is not yet committed
    holder.conn.commit()
    wait_until(lambda: first.holds("r"))
    first.conn.commit()
    first.close()
    waiter.conn.commit()
    first.conn.commit()
    granted_in_the_end(connect(), waiter, "r")


@pytest.fixture(scope="module")
def narrow():
    """A server whose dirty ring has room for 16 resources."""
    server = Server("e2e-narrow", "eskit_lease.ring_size = 16", "eskit_lease.max_waiting = 100")
    server.query("CREATE EXTENSION eskit_lease")
    yield server
    server.stop()


def names(prefix, count=300):
    return [f"{prefix}-{i}" for i in range(count)]


def queue_for(conn, session, resources):
    conn.execute(
        "SELECT count(*) FROM unnest(%s::text[]) AS r, LATERAL eskit_lease.lease_acquire(r, %s, true) AS a WHERE a.reason = 'queued'",
        (resources, session.id),
    )


def all_held_by(conn, session, resources):
    held = "SELECT count(*) FROM eskit_lease.leases WHERE resource = ANY (%s) AND session = %s AND state = 'held'"
    return conn.execute(held, (resources, session.id)).fetchone() == (len(resources),)


@pytest.mark.parametrize("how", ["crossing releases", "expiry", "rollback"])
def test_full_ring(narrow, how):
    resources = names(how)
    with narrow.connect() as conn, psycopg.connect(narrow.dsn()) as other, narrow.connect() as watcher:
        holder = Session(conn, "holder", ttl="2 s" if how == "expiry" else "120 s")
        waiter = Session(watcher, "waiter", ttl="120 s")
        rescans = stat(watcher, "rescans")
        if how == "rollback":
            other.execute("SELECT * FROM eskit_lease.lease_acquire_many(%s, %s)", (resources, holder.id))
            queue_for(watcher, waiter, resources)
            other.rollback()
        else:
            conn.execute("SELECT * FROM eskit_lease.lease_acquire_many(%s, %s)", (resources, holder.id))
            queue_for(other, waiter, resources)
            if how == "crossing releases":
                conn.execute("SELECT * FROM eskit_lease.lease_release_many(%s, %s)", (resources, holder.id))
            else:
                wait_until(lambda: holder.expired(watcher))
            other.commit()
        wait_until(lambda: all_held_by(watcher, waiter, resources))
        assert stat(watcher, "rescans") > rescans, "the ring was never full"
        assert watcher.execute("SELECT count(*) FROM eskit_lease.waiters").fetchone() == (0,)
        holder.close()
        waiter.close()


def test_hundreds_of_waiters_and_a_full_ring(narrow):
    """300 sessions wait for 30 resources; each releases a resource as soon as it has it. In the end each has had its
    turn."""
    resources = names("crowd", 30)
    with narrow.connect() as conn, narrow.connect() as watcher:
        holder = Session(conn, "holder", ttl="120 s")
        conn.execute("SELECT * FROM eskit_lease.lease_acquire_many(%s, %s)", (resources, holder.id))
        waiters = [Session(conn, f"waiter {i}", ttl="120 s").queue(resources[i % 30]) for i in range(300)]
        by_id = {waiter.id: waiter for waiter in waiters}
        assert holder.close()
        served = []

        def serve():
            held = watcher.execute(
                "SELECT session, resource, fence FROM eskit_lease.leases WHERE resource = ANY (%s) AND state = 'held'", (resources,)
            ).fetchall()
            for session, resource, fence in held:
                served.append(by_id[session].consumer)
                assert call(conn, "lease_release", resource, fence)
            return len(served) >= 300

        wait_until(serve)
        assert sorted(served) == sorted(waiter.consumer for waiter in waiters)
        for waiter in waiters:
            waiter.close()


def test_more_in_others_hands_than_the_ring_has_room_for(narrow):
    """The worker rescans the database less and less often, instead of without a pause."""
    resources = names("in hand", 30)
    with narrow.connect() as conn, psycopg.connect(narrow.dsn()) as releasing, narrow.connect() as watcher:
        holder, waiter = Session(conn, "holder", ttl="120 s"), Session(conn, "waiter", ttl="120 s")
        conn.execute("SELECT * FROM eskit_lease.lease_acquire_many(%s, %s)", (resources, holder.id))
        releasing.execute("SELECT * FROM eskit_lease.lease_release_many(%s, %s)", (resources, holder.id))
        before = stat(watcher, "rescans")
        queue_for(conn, waiter, resources)
        wait_until(lambda: stat(watcher, "rescans") > before)
        # Every turn of this loop takes time; a worker that spins would rescan the database in each turn.
        before, looks = stat(watcher, "rescans"), 300
        for _ in range(looks):
            watcher.execute("SELECT pg_sleep(0.005)")
        assert stat(watcher, "rescans") - before < looks / 3
        assert not all_held_by(watcher, waiter, resources[:1])
        releasing.commit()
        wait_until(lambda: all_held_by(watcher, waiter, resources))
        assert watcher.execute("SELECT count(*) FROM eskit_lease.waiters").fetchone() == (0,)
        holder.close()
        waiter.close()
