"""An administrator has locked a table of ours: work that can wait is postponed, and no commit fails because of it."""

from client import Session, call
from conftest import wait_until


def owned(conn, session):
    return sorted(partition for (partition,) in conn.execute("SELECT partition FROM eskit_lease.group_assignment('g', %s)", (session.id,)))


def beside_a_dead_member(conn):
    """Returns a living member of a group whose other member has died."""
    call(conn, "group_create", "g", 4)
    session, dying = Session(conn, "lives", ttl="1 h").join("g"), Session(conn, "dies", ttl="1 s").join("g")
    wait_until(lambda: dying.expired(conn))
    return session


def lock(admin, table):
    """Locks a table until the administrator's transaction is rolled back."""
    admin.execute("BEGIN")
    admin.execute(f"LOCK TABLE eskit_lease.{table} IN ACCESS EXCLUSIVE MODE")


def test_an_assignment_is_read_though_a_rebalance_cannot_be_done(no_worker, connect):
    """The other member is dead, which a rebalance records. No other process judges the group."""
    conn, admin = connect(), connect()
    session = beside_a_dead_member(conn)
    for table in ("_deaths", "_successions"):
        lock(admin, table)
        before = owned(conn, session)
        with conn.transaction():
            assert owned(conn, session) == before
        admin.execute("ROLLBACK")

    def has_all():
        with conn.transaction():
            owned(conn, session)
        return owned(conn, session) == [0, 1, 2, 3]

    wait_until(has_all)


def test_a_wait_behind_a_dead_holder(no_worker, connect):
    """The first waiter gets the lease once the holder's death can be recorded."""
    conn, admin = connect(), connect()
    waiter, dying = Session(conn, "waits", ttl="1 h"), Session(conn, "dies", ttl="1 s")
    dying.take("r")
    waiter.queue("r")
    wait_until(lambda: dying.expired(conn))
    lock(admin, "_deaths")
    assert waiter.wait("10 ms").reason == "timeout"
    assert not waiter.holds("r")
    admin.execute("ROLLBACK")

    def is_served():
        waiter.wait("10 ms")
        return waiter.holds("r")

    wait_until(is_served)


def test_a_lock_between_the_look_and_the_commit(no_worker, connect):
    conn, admin = connect(), connect()
    session = beside_a_dead_member(conn)
    with conn.transaction():
        conn.execute("CREATE TABLE mine ()")
        owned(conn, session)
        lock(admin, "_deaths")
    admin.execute("ROLLBACK")
    assert conn.execute("SELECT to_regclass('mine') IS NOT NULL").fetchone() == (True,), "what else it did is committed"
    call(conn, "session_sweep")
    wait_until(lambda: owned(conn, session) == [0, 1, 2, 3])


def test_a_takeover_is_committed_though_its_groups_cannot_be_passed_on(no_worker, connect):
    """The member's row names the heir's predecessor until the next sweep."""
    conn, admin = connect(), connect()
    call(conn, "group_create", "g", 4)
    before = Session(conn, "me", ttl="1 h").join("g")
    wait_until(lambda: owned(conn, before) == [0, 1, 2, 3])
    with conn.transaction():
        heir = Session(conn, "me", ttl="1 h", takeover=True)
        lock(admin, "_deaths")
    admin.execute("ROLLBACK")
    assert owned(conn, heir) == [0, 1, 2, 3]
    call(conn, "session_sweep")
    assert conn.execute("SELECT session FROM eskit_lease._members").fetchall() == [(heir.id,)]
