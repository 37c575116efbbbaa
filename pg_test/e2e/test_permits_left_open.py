"""A permit is free, and the first waiter may not have it: it already has a permit, or an open transaction is granting
or releasing its permit. Other sessions do not wait for that."""

import pytest
from client import Session, call
from conftest import wait_until

HELD, TAKEN = ("release", "grace", "release_many"), ("acquire",)


def change(conn, way, first):
    """Changes the first waiter's permit in a transaction that stays open."""
    if way == "acquire":
        return first.id and call(conn, "lease_acquire", "s", first.id)
    if way == "release_many":
        return call(conn, "lease_release_many", ["s"], first.id)
    return call(conn, "lease_release", "s", first.fences["s"], *(["1 min"] if way == "grace" else []))


@pytest.fixture
def scene(connect):
    """Gives a semaphore of two permits; another session holds one of them."""
    conn = connect()
    call(conn, "semaphore_create", "s", 2)
    other, first, next_one = (Session(conn, name, ttl="1 h") for name in ("other", "first", "next"))
    other.take("s")
    return conn, other, first, next_one


@pytest.mark.parametrize("worker", [True, False])
@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("way", [*HELD, *TAKEN])
def test_a_free_permit_goes_past_a_session_that_is_changing_its_own(connect, scene, request, way, prepared, worker):
    if not worker:
        request.getfixturevalue("no_worker")
    conn, other, first, next_one = scene
    if way in HELD:
        first.take("s")
    changing = connect(autocommit=False)
    change(changing, way, first)
    if prepared:
        changing.execute("PREPARE TRANSACTION 'changing'")
        changing.commit()
    first.queue("s")
    next_one.queue("s")
    assert other.release("s")
    if worker:
        wait_until(lambda: next_one.holds("s"), timeout=20)
    assert next_one.acquire("s").granted
    conn.execute("ROLLBACK PREPARED 'changing'") if prepared else changing.rollback()
    # The first waiter's place counts again if it has no permit: it is first in line for the other permit.
    late = Session(conn, "late", ttl="1 h")
    if way in TAKEN and not worker:
        assert late.acquire("s").reason == "awaited"
    # While the worker is just granting the permit, the session is told that it waits.
    assert first.acquire("s").granted or worker
    wait_until(lambda: first.holds("s"), timeout=20)
    assert not late.acquire("s").granted
    assert conn.execute("SELECT count(*) FROM eskit_lease.leases WHERE resource = 's' AND state = 'held'").fetchone() == (2,)


@pytest.mark.parametrize("way", ["place", "cancel"])
def test_a_place_of_a_holder_keeps_no_permit_without_a_worker(connect, scene, no_worker, way):
    conn, other, first, next_one = scene
    changing = connect(autocommit=False)
    if way == "place":
        first.take("s")
        change(changing, "release", first)
        first.queue("s")
    else:
        second = Session(conn, "second", ttl="1 h")
        second.take("s")
        first.queue("s")
        call(changing, "lease_cancel", "s", first.id)
        second.release("s")
        first.take("s")
    changing.rollback()
    assert first.acquire("s").reason == "already_held"
    next_one.queue("s")
    assert conn.execute("SELECT count(*) FROM eskit_lease.waiters").fetchone() == (2,)
    assert other.release("s")
    assert next_one.wait().reason == "changed" and next_one.holds("s")
