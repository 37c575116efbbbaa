"""What a hostile reader once found: each was a second holder, a lost wake-up, or a worker that one user could stop."""

import threading

import psycopg
import pytest
from client import Session, call, stat
from conftest import MAJOR, Server, wait_until


@pytest.fixture
def small():
    server = Server("e2e-attacks", "eskit_lease.max_sessions = 16", *(["max_notify_queue_pages = 64"] if int(MAJOR) >= 17 else []))
    server.query("CREATE EXTENSION eskit_lease")
    yield server
    server.stop()


def dies(session, conn):
    wait_until(lambda: session.expired(conn))


def is_granted(conn, session, resource, within=20):
    """Waits until the worker has granted the resource to the session, without a call, well before the transaction that
    is in the way ends."""
    held = "SELECT 1 FROM eskit_lease.leases WHERE resource = %s AND session = %s AND state = 'held'"
    wait_until(lambda: conn.execute(held, (resource, session.id)).fetchone(), timeout=within)


def test_a_close_that_was_prepared_and_rolled_back(connect):
    """A waiter whose close was prepared while the resource became free is served when that close is rolled back."""
    holder, waiter, closer = Session(connect(), ttl="60 s"), Session(connect(), ttl="60 s"), connect(autocommit=False)
    holder.take("r")
    waiter.queue("r")
    assert call(closer, "session_close", waiter.id)
    closer.execute("PREPARE TRANSACTION 'closing'")
    closer.commit()
    assert holder.release("r")
    conn = connect()
    conn.execute("ROLLBACK PREPARED 'closing'")
    is_granted(conn, waiter, "r")


def test_a_heartbeat_finds_that_a_close_was_rolled_back(connect, no_worker):
    session, closer = Session(connect(), ttl="60 s"), connect(autocommit=False)
    assert call(closer, "session_close", session.id)
    closer.execute("PREPARE TRANSACTION 'closing'")
    closer.commit()
    assert session.heartbeat().reason == "closing"
    session.conn.execute("ROLLBACK PREPARED 'closing'")
    assert session.heartbeat().reason == "alive"


def test_a_heartbeat_in_a_close_that_is_rolled_back_after_another_one(connect, no_worker):
    """The first close leaves the session frozen, and in the second one its row is deleted."""
    session, closer = Session(connect(), ttl="60 s"), connect(autocommit=False)
    assert call(closer, "session_close", session.id)
    closer.execute("PREPARE TRANSACTION 'closing'")
    closer.commit()
    session.conn.execute("ROLLBACK PREPARED 'closing'")
    assert call(closer, "session_close", session.id)
    call(closer, "session_heartbeat", session.id)
    closer.rollback()
    assert session.heartbeat().reason == "alive"


def test_a_close_that_was_rolled_back_while_others_have_the_row(connect):
    """Another transaction has locked the session's row, but does not end the session: the session lives again even
    while that lock is held."""
    session, closer, other, watcher = Session(connect(), ttl="60 s"), connect(autocommit=False), connect(autocommit=False), connect()
    assert call(closer, "session_close", session.id)
    closer.execute("PREPARE TRANSACTION 'closing'")
    closer.commit()
    assert session.heartbeat().reason == "closing"
    waiting = threading.Thread(
        target=other.execute, args=("SELECT FROM eskit_lease._sessions WHERE session = %s FOR UPDATE", (session.id,))
    )
    waiting.start()
    is_waiting = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
    wait_until(lambda: watcher.execute(is_waiting, (other.info.backend_pid,)).fetchone())
    watcher.execute("ROLLBACK PREPARED 'closing'")
    waiting.join()
    wait_until(lambda: session.heartbeat().reason == "alive", timeout=20)
    other.rollback()


def test_a_lease_of_a_session_that_is_gone_is_swept_once_it_can_be_had(connect):
    """Such a lease stays behind when a prepared close is committed while, after a restart, another process makes the
    session's slot from its row."""
    gone, holder, watcher = Session(connect()), Session(connect()), connect()
    preparer, other = connect(autocommit=False), connect(autocommit=False)
    holder.take("r")
    assert call(watcher, "session_close", gone.id)
    watcher.execute("UPDATE eskit_lease._leases SET session = %s WHERE resource = 'r'", (gone.id,))
    other.execute("SELECT FROM eskit_lease._leases WHERE resource = 'r' FOR UPDATE")
    call(preparer, "lease_acquire", "another", holder.id)
    preparer.execute("PREPARE TRANSACTION 'another'")
    preparer.commit()
    rescans = stat(watcher, "rescans")
    watcher.execute("COMMIT PREPARED 'another'")
    wait_until(lambda: stat(watcher, "rescans") > rescans)
    left = "SELECT 1 FROM eskit_lease._leases WHERE session = %s"
    assert watcher.execute(left, (gone.id,)).fetchone()
    other.rollback()
    wait_until(lambda: not watcher.execute(left, (gone.id,)).fetchone(), timeout=20)


def test_a_close_that_was_rolled_back_while_the_holder_let_go(connect):
    holder, waiter, closer = Session(connect(), ttl="60 s"), Session(connect(), ttl="60 s"), connect(autocommit=False)
    watcher = connect()
    for turn in range(30):
        resource = f"r {turn}"
        holder.take(resource)
        waiter.queue(resource)
        assert call(closer, "session_close", waiter.id)
        assert holder.release(resource)
        closer.rollback()
        is_granted(watcher, waiter, resource)


def test_open_closes_of_all_who_are_before_it_keep_nothing_from_a_waiter(connect):
    holder, watcher = Session(connect(), "holder", ttl="60 s"), connect()
    holder.take("r")
    closing = [Session(watcher, f"closing {i}", ttl="60 s").queue("r") for i in range(12)]
    last = Session(watcher, "last", ttl="60 s").queue("r")
    for session in closing:
        assert call(connect(autocommit=False), "session_close", session.id)  # open until the end of the test
    assert holder.release("r")
    is_granted(watcher, last, "r")


def test_an_open_drain_of_a_dead_session_stops_nobody_else(connect):
    """The worker waits for no row lock of another transaction."""
    drained = Session(connect(autocommit=False), ttl="3 s")
    drained.conn.commit()
    waiter = Session(connect(), ttl="60 s")
    assert call(drained.conn, "session_drain", drained.id)
    watcher = connect()
    dies(drained, watcher)
    holder = Session(connect(), ttl="1 s")
    holder.take("r")
    waiter.queue("r")
    is_granted(watcher, waiter, "r")
    drained.conn.rollback()
    wait_until(lambda: not watcher.execute("SELECT 1 FROM eskit_lease.sessions WHERE session = %s", (drained.id,)).fetchone())


def test_a_private_session_has_its_one_lease(connect):
    conn = connect()
    fence = call(conn, "lock_acquire", "one", "owner", "60 s").fence
    (private,) = conn.execute("SELECT session FROM eskit_lease.sessions WHERE private").fetchone()
    assert call(conn, "lease_acquire", "two", private).reason == "unknown_session"
    assert not call(conn, "session_heartbeat", private).alive
    assert call(conn, "lease_release", "one", fence)
    assert not conn.execute("SELECT 1 FROM eskit_lease.sessions WHERE private").fetchone()


def test_a_database_that_lets_nobody_in_keeps_its_sessions(server, db, connect):
    holder, rival = Session(connect(), ttl="60 s"), Session(connect(), ttl="2 s")
    holder.take("r")
    server.query(f"ALTER DATABASE {db} ALLOW_CONNECTIONS false")
    try:
        # The death of another session makes the launcher look at the database.
        dies(rival, holder.conn)
        wait_until(lambda: holder.conn.execute("SELECT count(*) FROM eskit_lease._sessions").fetchone() == (1,))
        assert holder.heartbeat().alive
        assert holder.renew("r").held
    finally:
        server.query(f"ALTER DATABASE {db} ALLOW_CONNECTIONS true")


def test_refusals_and_rollbacks_use_up_no_slots(small):
    """If no other process has seen a session, its slot is free as soon as the session has ended."""
    with small.connect() as conn, small.connect() as other:
        holder = Session(other, "holder", ttl="60 s")
        holder.take("r")
        with other.transaction():
            assert holder.release("r")
            for _ in range(40):
                assert call(conn, "lock_acquire", "r", "owner", "1 h").reason == "busy"
        for _ in range(40):
            with conn.transaction(force_rollback=True):
                call(conn, "session_open", "undone", "1 h")
        for _ in range(40):
            with conn.transaction():
                assert call(conn, "session_close", call(conn, "session_open", "short", "1 h").session)
        assert call(conn, "lock_acquire", "r", "owner", "60 s").granted


def test_sessions_without_a_slot_live_by_their_rows(small):
    """After a restart there may be more living sessions than slots."""
    conn = small.connect()
    holders = [Session(conn, f"holder {i}", ttl="60 s") for i in range(8)]
    for i, holder in enumerate(holders):
        holder.take(f"r {i}")
    # Rows of an earlier start of shared memory, as many as there are slots and more.
    conn.execute(
        "INSERT INTO eskit_lease._sessions SELECT gen_random_uuid(), 'old', role, 60000, boot_id, opened_at FROM eskit_lease._sessions, "
        "generate_series(1, 5)"
    )
    conn.close()
    small.restart()
    with small.connect() as conn:
        wait_until(lambda: stat(conn, "rescans") >= 1)
        rival = call(conn, "lock_acquire", "r 7", "rival", "2 s")
        assert not rival.granted and rival.reason == "held", rival
        assert conn.execute("SELECT count(*) FROM eskit_lease.leases WHERE state = 'held'").fetchone() == (8,)


def test_defaults_of_the_database_do_not_reach_the_worker(server, db, connect):
    for setting in ("default_transaction_read_only = on", "default_transaction_isolation = serializable"):
        server.query(f"ALTER DATABASE {db} SET {setting}")
    writer = "-c default_transaction_read_only=off"
    holder, waiter = Session(connect(options=writer), ttl="1 s"), Session(connect(options=writer), ttl="60 s")
    holder.take("r")
    waiter.queue("r")
    is_granted(connect(), waiter, "r")


def test_lock_timeout_of_the_database_does_not_reach_the_worker(server, db, connect):
    """The worker waits for the session that has locked a table, and is not cancelled and started again, later each
    time."""
    server.query(f"ALTER DATABASE {db} SET lock_timeout = '1ms'")
    conn, locker = (connect(options="-c lock_timeout=20s") for _ in range(2))
    holder, waiter = Session(conn, ttl="1 s"), Session(conn, ttl="60 s")
    holder.take("r")
    waiter.queue("r")
    locker.execute("BEGIN")
    locker.execute("LOCK TABLE eskit_lease._leases IN ACCESS EXCLUSIVE MODE")
    waits = """SELECT pid FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
               WHERE a.datname = %s AND a.backend_type = 'eskit_lease worker' AND l.waitstart < clock_timestamp() - interval '100 ms'"""
    (worker,) = wait_until(lambda: server.query(waits, db), timeout=20)
    locker.execute("ROLLBACK")
    is_granted(conn, waiter, "r")
    assert worker[0] in server.workers(dbname=db)


def test_locked_leases_of_the_dead_keep_the_worker_from_nothing(connect):
    """The worker passes over leases that others have locked, and does not spin on them."""
    holder = Session(connect(autocommit=False), ttl="2 s")
    names = [f"n{i:04}" for i in range(1200)]
    holder.conn.execute("SELECT count(*) FROM eskit_lease.lease_acquire_many(%s, %s)", (names, holder.id))
    assert holder.acquire("wanted").granted
    holder.conn.commit()
    waiter, watcher = Session(connect(), ttl="60 s"), connect()
    waiter.queue("wanted")
    holder.conn.execute("SELECT count(*) FROM eskit_lease.lease_release_many(%s, %s)", (names, holder.id))
    dies(holder, watcher)
    is_granted(watcher, waiter, "wanted")
    # Every turn of this loop takes time; a worker that spins would make at least one pass in each turn.
    before, looks = stat(watcher, "sweeps"), 300
    for _ in range(looks):
        watcher.execute("SELECT pg_sleep(0.005)")
    assert stat(watcher, "sweeps") - before < looks / 3
    holder.conn.rollback()
    wait_until(lambda: not watcher.execute("SELECT 1 FROM eskit_lease.sessions WHERE session = %s", (holder.id,)).fetchone())


@pytest.mark.skipif(int(MAJOR) < 17, reason="max_notify_queue_pages came with PostgreSQL 17; before, filling the queue takes 8 GB")
def test_a_full_queue_of_notifications_stops_no_hand_over(small):
    with small.connect() as conn, psycopg.connect(small.dsn()) as listener, small.connect() as watcher:
        listener.execute("LISTEN anything")
        listener.commit()
        listener.execute("SELECT 1")  # the transaction stays open, so that the notification queue is not read
        with pytest.raises(psycopg.Error, match="too many notifications"):
            for _ in range(100):
                conn.execute("SELECT count(pg_notify('anything', i || repeat('x', 7000))) FROM generate_series(1, 100) AS i")
        holder, waiter = Session(conn, "holder", ttl="1 s"), Session(conn, "waiter", ttl="60 s")
        holder.take("r")
        waiter.queue("r")
        is_granted(watcher, waiter, "r")
        listener.rollback()
