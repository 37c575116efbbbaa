"""A session that waits for work items is woken when one becomes due."""

import threading

import pytest
from client import Session, call, rows
from conftest import Server, wait_until
from psycopg.types.json import Jsonb


@pytest.fixture(scope="module")
def due_server():
    server = Server("e2e-due", "fsync = off", "max_prepared_transactions = 10", "eskit_lease.max_waiting = 20")
    server.query("CREATE EXTENSION eskit_lease")
    yield server
    server.stop()


@pytest.fixture
def conn(due_server):
    with due_server.connect() as conn:
        yield conn
        conn.execute("SELECT eskit_lease.queue_drop(queue, true) FROM eskit_lease.queues")
        conn.execute("SELECT eskit_lease.session_close(session) FROM eskit_lease.sessions")


def soon(conn, milliseconds=1_000):
    return conn.execute("SELECT clock_timestamp() + %s * interval '1 ms'", (milliseconds,)).fetchone()[0]


def hungry(conn, queue, ttl="60 s"):
    """Returns a session that has asked for items. On a very slow machine it may already have got some: `got`."""
    session = Session(conn, "hungry", ttl=ttl)
    session.got = [item.id for item in rows(conn, "item_claim", queue, session.id)]
    session.revision = session.heartbeat().revision
    return session


def is_given(conn, queue, session, id):
    """Returns whether the session gets the item, and each time was woken before it would look by itself."""

    def given():
        assert session.wait("10 s").reason == "changed"
        return [item.id for item in rows(conn, "item_claim", queue, session.id)]

    return (session.got or wait_until(given)) == [id]


@pytest.mark.parametrize("ordering", ["none", "key", "fifo"])
def test_what_was_there_before(conn, ordering):
    call(conn, "queue_create", "q", 20, "1 s", ordering)
    call(conn, "item_add", "q", Jsonb("far"), None, soon(conn, 3_600_000))
    id = call(conn, "item_add", "q", Jsonb("soon"), None, soon(conn))
    assert is_given(conn, "q", hungry(conn, "q"), id)


def test_what_is_added_meanwhile(due_server, conn):
    call(conn, "queue_create", "q")
    session = hungry(conn, "q")
    with due_server.connect() as adder, due_server.connect() as listener:
        listener.execute("LISTEN eskit_lease")
        with adder.transaction():
            (id,) = call(adder, "item_add_many", "q", [Jsonb("soon")], None, soon(adder))
            assert session.wait("0").reason == "timeout"
        assert is_given(conn, "q", session, id)
        assert [note.payload for note in listener.notifies(timeout=30, stop_after=1)] == ['{"event":"items","queue":"q"}']


@pytest.mark.parametrize("ordering", ["none", "key", "fifo"])
def test_what_is_to_be_tried_again(conn, ordering):
    call(conn, "queue_create", "q", 20, "1 s", ordering)
    other = Session(conn, "other", ttl="60 s")
    id = call(conn, "item_add", "q", Jsonb(1), "key")
    (item,) = rows(conn, "item_claim", "q", other.id)
    session = hungry(conn, "q")
    call(conn, "item_fail", item.id, item.fence, "to be tried again")
    assert is_given(conn, "q", session, id)
    # The item fails again: a claim finds it not due, and the items behind it do not wait.
    (item,) = conn.execute("SELECT fence FROM eskit_lease.items WHERE id = %s", (id,)).fetchall()
    call(conn, "item_fail", id, item[0], "once more")
    if ordering != "none":
        call(conn, "item_add", "q", Jsonb(2), "key")
    assert is_given(conn, "q", hungry(conn, "q"), id)


def test_the_earliest_of_many(conn):
    for n in range(40):
        call(conn, "queue_create", f"q{n}")
        call(conn, "item_add", f"q{n}", Jsonb(n), None, soon(conn, 3_600_000))
    session = hungry(conn, "q7")
    for n in range(40):
        if n != 7:
            assert rows(conn, "item_claim", f"q{n}", session.id) == []
    session.revision = session.heartbeat().revision
    id = call(conn, "item_add", "q7", Jsonb("soon"), None, soon(conn))
    assert is_given(conn, "q7", session, id)


def test_who_waits_for_two_queues_is_woken_for_each(conn):
    for queue in ("q", "r"):
        call(conn, "queue_create", queue)
    sessions = [hungry(conn, "q") for _ in range(3)]
    for session in sessions:
        assert rows(conn, "item_claim", "r", session.id) == []
    for queue in ("q", "r"):
        for session in sessions:
            session.revision = session.heartbeat().revision
        call(conn, "item_add", queue, Jsonb("now"))
        assert [session.wait("10 s").reason for session in sessions] == ["changed"] * len(sessions)


def test_far_off_items_keep_no_worker(due_server, conn):
    call(conn, "queue_create", "q")
    call(conn, "item_add", "q", Jsonb("far"), None, soon(conn, 3_600_000))
    session = hungry(conn, "q")
    wait_until(lambda: not due_server.workers())
    id = call(conn, "item_add", "q", Jsonb("soon"), None, soon(conn, 2_500))
    assert is_given(conn, "q", session, id)
    wait_until(lambda: not due_server.workers())


def test_after_a_crash(due_server):
    with due_server.connect() as conn:
        call(conn, "queue_create", "crash")
        id = call(conn, "item_add", "crash", Jsonb("soon"), None, soon(conn, 2_500))
        hungry(conn, "crash")
    due_server.crash()
    with due_server.connect() as conn:
        assert is_given(conn, "crash", hungry(conn, "crash"), id)
        conn.execute("SELECT eskit_lease.queue_drop(queue, true) FROM eskit_lease.queues")


def test_prepared(due_server, conn):
    call(conn, "queue_create", "q")
    session = hungry(conn, "q")
    with due_server.connect() as adder:
        adder.execute("BEGIN")
        id = call(adder, "item_add", "q", Jsonb("soon"), None, soon(adder, 2_500))
        adder.execute("PREPARE TRANSACTION 'due'")
    assert session.wait("0").reason == "timeout"
    conn.execute("COMMIT PREPARED 'due'")

    # The session is woken once when the transaction's end is noticed, and once when the item is due.
    assert is_given(conn, "q", session, id)


@pytest.fixture
def waiters(due_server, conn):
    """Gives a function that starts sessions which sleep until there are items. A woken session calls `woken`, and ends
    when that returns False or the test is over."""
    threads, over = [], threading.Event()

    def start(queue, count, woken):
        def wait(conn, session):
            while not over.is_set():
                if not rows(conn, "item_claim", queue, session.id):
                    while not over.is_set() and session.wait("250 ms").reason != "changed":
                        pass
                    if not over.is_set() and not woken(conn, session):
                        return

        for n in range(count):
            conn_of_one = due_server.connect()
            thread = threading.Thread(target=wait, args=(conn_of_one, Session(conn_of_one, f"waiter {n}", ttl="60 s")))
            threads.append((thread, conn_of_one))
            thread.start()
        asleep = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%session_wait%' AND state = 'active' AND pid <> pg_backend_pid()"
        wait_until(lambda: conn.execute(asleep).fetchone()[0] == count)

    yield start
    over.set()
    for thread, conn_of_one in threads:
        thread.join()
        conn_of_one.close()


def test_an_item_wakes_one(conn, waiters):
    call(conn, "queue_create", "q")
    wakes = []
    waiters("q", 8, lambda *_: wakes.append(1) or True)
    for n in range(20):
        call(conn, "item_add", "q", Jsonb(n))
        wait_until(lambda: not conn.execute("SELECT FROM eskit_lease.items WHERE state = 'ready'").fetchall())
    # On a busy machine some sessions come late, so that others are woken as well; but not all of them each time.
    assert 20 <= len(wakes) < 80, len(wakes)


def test_an_item_is_told_to_all_who_do_not_wait(conn):
    call(conn, "queue_create", "q")
    sessions = [hungry(conn, "q") for _ in range(3)]
    call(conn, "item_add", "q", Jsonb(1))
    assert [session.wait("0").reason for session in sessions] == ["changed"] * 3


@pytest.mark.parametrize("worker", ["on", "off"])
def test_the_next_is_woken_where_one_does_not_claim(due_server, conn, waiters, worker):
    call(conn, "queue_create", "q")
    due_server.set(**{"eskit_lease.worker": worker})
    try:
        woken = []
        waiters("q", 4, lambda _, session: woken.append(session.id))
        call(conn, "item_add", "q", Jsonb("for nobody"))
        wait_until(lambda: len(woken) == 4)
        assert len(set(woken)) == 4
    finally:
        due_server.set(**{"eskit_lease.worker": "on"})


def test_as_many_are_woken_as_there_are_items(conn, waiters):
    call(conn, "queue_create", "q")
    woken = []
    waiters("q", 4, lambda conn, session: woken.extend(rows(conn, "item_claim", "q", session.id)))
    call(conn, "item_add_many", "q", [Jsonb(n) for n in range(4)])
    wait_until(lambda: len(woken) == 4)
    assert len({item.id for item in woken}) == 4
