"""A restart gives each session its TTL anew, but not to one because of whose death others were granted something."""

import psycopg
import pytest
from client import Session, call
from conftest import Server, wait_until

DEATHS = "SELECT count(*) FROM eskit_lease._deaths"


@pytest.fixture(scope="module")
def idle():
    """Nothing works in the background: what is granted here nobody else has looked at."""
    server = Server("e2e-restarts", "eskit_lease.worker = off", "max_prepared_transactions = 5", "autovacuum = off")
    yield server
    server.stop()


@pytest.fixture
def conn(idle):
    with idle.connect() as conn:
        for (left,) in conn.execute("SELECT gid FROM pg_prepared_xacts").fetchall():
            conn.execute(f"ROLLBACK PREPARED '{left}'")
        conn.execute("DROP EXTENSION IF EXISTS eskit_lease")
        conn.execute("CREATE EXTENSION eskit_lease")
        yield conn


def shrunk(conn, slot):
    """A semaphore of three permits, all held, now of two. Its holders by slot; that of `slot` is the one that will die."""
    call(conn, "semaphore_create", "s", 3)
    holders = {}
    for name in ("a", "b", "c"):
        session = Session(conn, name, ttl="120 s")
        holders[session.acquire("s").slot] = session
    assert holders.pop(slot).release("s")
    dying = holders[slot] = Session(conn, "dying", ttl="2 s")
    dying.take("s")
    call(conn, "semaphore_resize", "s", 2)
    return holders, dying


def passes(session, resource, conn):
    session.conn = conn
    try:
        session.check(resource)
    except psycopg.Error as refused:
        assert refused.sqlstate == "LF001"
        return False
    return True


@pytest.mark.parametrize(("slot", "how"), [(2, "asks"), (2, "prepared"), (1, "asks"), (1, "waits")])
def test_no_more_holders_than_permits(idle, conn, slot, how):
    """The dead one has the slot beyond the permits, or another one while that is held."""
    holders, dying = shrunk(conn, slot)
    newcomer = Session(conn, "newcomer", ttl="120 s")
    wait_until(lambda: dying.expired(conn))
    assert newcomer.acquire("s", queue=how == "waits").reason in ("held", "queued")
    assert conn.execute(DEATHS).fetchone() == (0,), "a refusal takes nothing from anybody"
    leaver = holders.pop(1 if slot == 2 else 0)
    conn.execute("BEGIN")
    assert leaver.release("s")
    if how != "waits":
        assert newcomer.acquire("s").granted
    conn.execute("PREPARE TRANSACTION 'grants'" if how == "prepared" else "COMMIT")
    idle.restart("immediate")
    with idle.connect() as conn:
        assert not passes(dying, "s", conn)
        if how == "prepared":
            conn.execute("COMMIT PREPARED 'grants'")
        newcomer.conn = dying.conn = conn
        assert newcomer.acquire("s").reason == "already_held"
        assert sum(passes(session, "s", conn) for session in (*holders.values(), newcomer)) == 2
        assert not dying.heartbeat().alive


def test_a_permit_that_a_transaction_of_the_dead_still_uses(idle, conn):
    """While a slot beyond the permits is held, no other slot is free for that."""
    holders, dying = shrunk(conn, 1)
    newcomer = Session(conn, "newcomer", ttl="120 s")
    with idle.connect() as work:
        work.autocommit = False
        call(work, "fence_check", "s", dying.fences["s"])
        wait_until(lambda: dying.expired(conn))
        assert holders[0].release("s")
        assert newcomer.acquire("s").reason == "busy"
    assert newcomer.acquire("s").granted


def test_a_predecessor_that_had_expired(idle, conn):
    former = Session(conn, "consumer", ttl="2 s")
    former.take("r")
    wait_until(lambda: former.expired(conn))
    Session(conn, "consumer", ttl="120 s", takeover=True)
    idle.restart("immediate")
    with idle.connect() as conn:
        former.conn = conn
        assert not former.heartbeat().alive


def test_a_member_that_cannot_be_taken_out_now(idle, conn):
    """Partitions are dealt out among the others; it has none."""
    call(conn, "group_create", "g", 1)
    members = [Session(conn, f"member {i}", ttl="120 s" if i == 0 else "2 s") for i in range(2)]
    for member in members:
        call(conn, "group_join", "g", member.id)
    wait_until(lambda: members[1].expired(conn))
    with idle.connect() as other, other.transaction():
        other.execute("SELECT FROM eskit_lease._members FOR UPDATE")
        call(conn, "group_join", "g", Session(conn, "newcomer", ttl="120 s").id)
        assert conn.execute("SELECT session FROM eskit_lease._deaths").fetchall() == [(members[1].id,)]


def test_a_name_that_was_waited_for(idle, conn):
    holder, waiter = Session(conn, "holder", ttl="120 s"), Session(conn, "waiter", ttl="2 s")
    holder.take("r")
    waiter.queue("r")
    wait_until(lambda: waiter.expired(conn))
    assert holder.release("r")
    call(conn, "semaphore_create", "r", 2)
    idle.restart("immediate")
    with idle.connect() as conn:
        waiter.conn = conn
        assert not waiter.heartbeat().alive
