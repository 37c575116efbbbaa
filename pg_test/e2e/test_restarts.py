"""A crash gives each session its TTL again. Exceptions: a session whose death led to grants to others gets none, and a
session whose end is prepared gets it only once."""

import psycopg
import pytest
from client import Session, call, rows
from conftest import Server, make_anew, wait_until

DEATHS = "SELECT count(*) FROM eskit_lease._deaths"


@pytest.fixture(scope="module")
def idle():
    """A server without workers, so no other process looks at what is granted here."""
    server = Server("e2e-restarts", "eskit_lease.worker = off", "max_prepared_transactions = 5", "autovacuum = off")
    yield server
    server.stop()


@pytest.fixture
def conn(idle):
    with idle.connect() as conn:
        make_anew(conn)
        yield conn


def shrunk(conn, slot):
    """Makes a semaphore of three permits, all held, and shrinks it to two. Returns its holders by slot; the one in
    `slot` will die."""
    call(conn, "semaphore_create", "s", 3)
    holders = {}
    for name in ("a", "b", "c"):
        session = Session(conn, name, ttl="120 s")
        holders[session.acquire("s").slot] = session
    assert holders.pop(slot).release("s")
    dying = holders[slot] = Session(conn, "dying", ttl="1 s")
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
    """The dead holder has the slot beyond the permits, or another slot while that one is held."""
    holders, dying = shrunk(conn, slot)
    newcomer = Session(conn, "newcomer", ttl="120 s")
    wait_until(lambda: dying.expired(conn))
    assert newcomer.acquire("s", queue=how == "waits").reason in ("held", "queued")
    assert conn.execute(DEATHS).fetchone() == (0,), "a refusal takes nothing from any session"
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
    """While a slot beyond the permits is held, a dead holder's slot that its open transaction still uses is not
    free."""
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
    former = Session(conn, "consumer", ttl="1 s")
    former.take("r")
    wait_until(lambda: former.expired(conn))
    Session(conn, "consumer", ttl="120 s", takeover=True)
    idle.restart("immediate")
    with idle.connect() as conn:
        former.conn = conn
        assert not former.heartbeat().alive


def test_a_member_that_cannot_be_taken_out_now(idle, conn):
    """The dead member owns no partition, and a newcomer is counted without it, so its death is recorded."""
    call(conn, "group_create", "g", 1)
    members = [Session(conn, f"member {i}", ttl="120 s" if i == 0 else "1 s") for i in range(2)]
    for member in members:
        call(conn, "group_join", "g", member.id)
    wait_until(lambda: members[1].expired(conn))
    with idle.connect() as other, other.transaction():
        other.execute("SELECT FROM eskit_lease._members FOR UPDATE")
        call(conn, "group_join", "g", Session(conn, "newcomer", ttl="120 s").id)
        assert conn.execute("SELECT session FROM eskit_lease._deaths").fetchall() == [(members[1].id,)]


def test_a_name_that_was_waited_for(idle, conn):
    holder, waiter = Session(conn, "holder", ttl="120 s"), Session(conn, "waiter", ttl="1 s")
    holder.take("r")
    waiter.queue("r")
    wait_until(lambda: waiter.expired(conn))
    assert holder.release("r")
    call(conn, "semaphore_create", "r", 2)
    idle.restart("immediate")
    with idle.connect() as conn:
        waiter.conn = conn
        assert not waiter.heartbeat().alive


def closes(conn, session):
    assert call(conn, "session_close", session.id)


def drains_and_closes(conn, session):
    """Drains and closes: the drain makes a new version of the session's row, and the close deletes that."""
    assert call(conn, "session_drain", session.id)
    closes(conn, session)


def takes_over(conn, session):
    call(conn, "session_open", session.consumer, "120 s", False, "0", True)


def ended_by(idle, conn, ends):
    """Returns a session that holds r, whose end by `ends` was prepared before a restart."""
    session = Session(conn, "consumer", ttl="120 s")
    session.take("r")
    conn.execute("BEGIN")
    ends(conn, session)
    conn.execute("PREPARE TRANSACTION 'ends'")
    assert session.heartbeat().reason == "closing"
    idle.restart("immediate")
    return session


@pytest.mark.parametrize("ends", [closes, drains_and_closes, takes_over])
@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_a_prepared_end(idle, conn, ends, end):
    session = ended_by(idle, conn, ends)
    with idle.connect() as conn:
        session.conn = conn
        standing = "SELECT state FROM eskit_lease.sessions WHERE session = %s"
        assert conn.execute(standing, (session.id,)).fetchone() == ("closing",), "no process has made its slot yet"
        first = session.heartbeat()
        assert (first.alive, first.reason) == (True, "closing")
        assert session.heartbeat().trust_ms <= first.trust_ms
        assert session.acquire("another").reason == "closing"
        assert conn.execute(standing, (session.id,)).fetchone() == ("closing",)
        conn.execute(f"{end} PREPARED 'ends'")
        if end == "COMMIT":
            assert not session.heartbeat().alive, "at once: no other process has looked"
        else:
            wait_until(lambda: call(conn, "session_sweep") and session.heartbeat().reason == "alive")
            assert passes(session, "r", conn)


def test_a_prepared_release_of_a_lock(idle, conn):
    fence = call(conn, "lock_acquire", "r", "owner", "120 s").fence
    conn.execute("BEGIN")
    assert call(conn, "lease_release", "r", fence)
    conn.execute("PREPARE TRANSACTION 'ends'")
    before = call(conn, "lease_renew", "r", fence)
    idle.restart("immediate")
    with idle.connect() as conn:
        first = call(conn, "lease_renew", "r", fence)
        assert (first.held, first.reason) == (before.held, before.reason)
        assert call(conn, "lease_renew", "r", fence).trust_ms <= first.trust_ms
        assert conn.execute("SELECT state FROM eskit_lease.sessions WHERE private").fetchone() == ("closing",)
        conn.execute("COMMIT PREPARED 'ends'")
        assert call(conn, "lock_acquire", "r", "another", "120 s").granted
        assert not call(conn, "lease_renew", "r", fence).held


def releases_many(conn, session):
    assert len(rows(conn, "lease_release_many", [f"r {i}" for i in range(501)], session.id)) == 501


def leaves(conn, session):
    assert call(conn, "group_leave", "g", session.id)


def has_not_closed(conn, session):
    conn.execute("SAVEPOINT s")
    closes(conn, session)
    conn.execute("ROLLBACK TO s")
    assert call(conn, "session_drain", session.id)


@pytest.mark.parametrize("act", [releases_many, leaves, has_not_closed])
@pytest.mark.parametrize("again", [False, True])
def test_what_ends_nobody(idle, conn, act, again):
    """A prepared transaction holds the same guard as a close, without ending the session: before a restart, or just
    after a close was rolled back."""
    session = Session(conn, "consumer", ttl="120 s")
    call(conn, "group_create", "g", 1)
    call(conn, "group_join", "g", session.id)
    assert all(row.granted for row in rows(conn, "lease_acquire_many", [f"r {i}" for i in range(501)], session.id))
    if again:
        conn.execute("BEGIN")
        closes(conn, session)
        conn.execute("PREPARE TRANSACTION 'closes'")
        conn.execute("ROLLBACK PREPARED 'closes'")
    conn.execute("BEGIN")
    act(conn, session)
    conn.execute("PREPARE TRANSACTION 'acts'")
    if not again:
        idle.restart("immediate")
    with idle.connect() as conn:
        session.conn = conn
        wait_until(lambda: call(conn, "session_sweep") and session.heartbeat().reason == "alive")
        conn.execute("COMMIT PREPARED 'acts'")
        assert session.heartbeat().alive
