"""Old workers hold an advisory lock, beside new workers that hold the lease bridged to that lock. Meanwhile the worker
and the server are killed."""

import os
import random
import signal
import time

import psycopg
import pytest
from client import Session, Stubborn, call
from conftest import Server, once, wait_until

pytestmark = once
KEY = -1214547986480760684  # advisory_lock_id('sub:orders')
WORK = "DROP TABLE IF EXISTS work; CREATE TABLE work (id bigint GENERATED ALWAYS AS IDENTITY, side text, began timestamptz, ended timestamptz)"
# Pairs of units of work from both sides that overlap in time.
OVERLAPS = "SELECT a.*, b.* FROM work AS a JOIN work AS b ON a.side = 'old' AND b.side = 'new' AND a.began < b.ended AND b.began < a.ended"


@pytest.fixture(scope="module")
def bridged():
    server = Server("e2e-bridged")
    yield server
    server.stop()


@pytest.fixture
def scene(bridged):
    """Gives a new holder, and a connection of an old worker."""
    bridged.query("DROP EXTENSION IF EXISTS eskit_lease")
    bridged.query("CREATE EXTENSION eskit_lease")
    with bridged.connect() as new, bridged.connect() as old:
        call(new, "bridge_create", "r", KEY)
        session = Session(new, "new", ttl="60 s")
        session.queue("r").wait_for("r")
        yield session, old
    bridged.set(eskit_lease__worker=None)


def workers(server):
    return server.workers(dbname="postgres")


def crosses(server):
    return server.query("SELECT held FROM eskit_lease.bridges") == [(True,)]


def takes(old):
    return old.execute("SELECT pg_try_advisory_lock(%s)", (KEY,)).fetchone()[0]


def unlocks(old):
    assert old.execute("SELECT pg_advisory_unlock(%s)", (KEY,)).fetchone()[0]


def checks(session):
    """Returns whether the fence passes a check; if not, the other side is at work, or may have been."""
    try:
        session.check("r")
    except psycopg.errors.LockNotAvailable as refused:
        assert str(KEY) in refused.diag.message_primary and "bridges" in refused.diag.message_hint
        return False
    return True


def goes_on(session):
    """Returns whether the lease goes on under a newer fence than the last."""
    before = session.fences["r"]
    wait_until(lambda: (session.acquire("r").fence or 0) > before)  # busy for a moment
    with pytest.raises(psycopg.Error) as lost:
        call(session.conn, "fence_check", "r", before)
    return lost.value.sqlstate == "LF001" and wait_until(lambda: checks(session))


def test_the_worker_comes_back_for_the_lock(bridged, scene):
    session, old = scene
    for _ in range(3):
        (worker,) = workers(bridged)
        assert not takes(old)
        bridged.query("SELECT pg_terminate_backend(%s)", worker)
        wait_until(lambda: workers(bridged) not in ([], [worker]))
        assert goes_on(session)
    time.sleep(2.5)  # longer than an idle worker stays
    assert workers(bridged) and crosses(bridged) and checks(session)


def test_an_old_worker_that_was_faster(bridged, scene):
    session, old = scene
    with session.conn.transaction():
        session.check("r")
        bridged.set(eskit_lease__worker="off")
        wait_until(lambda: not workers(bridged))
        assert not takes(old), "the fenced transaction has the lock as well, to its end"
    assert not checks(session), "an old worker may have been there"
    assert takes(old)
    assert not checks(session)
    bridged.set(eskit_lease__worker=None)
    wait_until(lambda: workers(bridged))
    wait_until(lambda: bridged.query("SELECT held, blocked_by FROM eskit_lease.bridges") == [(False, [old.info.backend_pid])])
    assert not checks(session)
    assert session.renew("r").held
    unlocks(old)
    assert goes_on(session)
    assert not takes(old)


def test_an_old_worker_that_waits(bridged, scene, background):
    session, old = scene
    with session.conn.transaction():
        session.check("r")
        waits = background(old.execute, "SELECT pg_advisory_lock(%s)", (KEY,))
        wait_until(lambda: bridged.query("SELECT blocked_by FROM eskit_lease.bridges") == [([old.info.backend_pid],)])
        wait_until(lambda: not crosses(bridged))
        assert not waits.done(), "it waits for the fenced transaction"
        session.check("r")  # the first check still counts
    waits.result()
    assert not checks(session)
    unlocks(old)
    assert goes_on(session)


def test_a_holder_that_is_still_fenced(bridged, scene):
    """While a transaction of the holder is fenced under the old fence, the holder gets no new fence."""
    session, old = scene
    with bridged.connect() as other, session.conn.transaction():
        session.check("r")
        (worker,) = workers(bridged)
        bridged.query("SELECT pg_terminate_backend(%s)", worker)
        again = wait_until(lambda: shares(bridged, worker))
        with pytest.raises(psycopg.errors.LockNotAvailable):
            call(other, "fence_check", "r", session.fences["r"])
        assert shares(bridged, worker) == again and not crosses(bridged)
    assert goes_on(session)


def shares(server, but):
    """Returns the worker that has the lock in share mode, if it is not `but`."""
    found = server.query("SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND mode = 'ShareLock'")
    return {pid for (pid,) in found} & set(workers(server)) - {but}


def test_the_lock_outlives_neither_the_lease_nor_the_extension(bridged, scene):
    session, old = scene
    session.release("r")
    wait_until(lambda: takes(old))
    session.queue("r")
    unlocks(old)
    session.wait_for("r")
    assert not takes(old)
    bridged.query("DROP EXTENSION eskit_lease")
    wait_until(lambda: takes(old))
    unlocks(old)


def test_a_crash_of_the_server(bridged, scene):
    session, old = scene
    (worker,) = workers(bridged)
    kill(bridged, worker)
    with bridged.connect() as session.conn, bridged.connect() as old:
        assert session.heartbeat().alive and goes_on(session)
        assert not takes(old)
        session.close()


def kill(server, worker):
    """Kills the worker, and returns when the server has recovered."""
    find = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'"
    before = server.query(find)

    def recovered():
        try:
            return server.query(find) not in ([], before)
        except psycopg.OperationalError:
            return False

    os.kill(worker, signal.SIGKILL)
    wait_until(recovered)


class Old(Stubborn):
    """An old worker, which tries for the lock or waits for it, and works while it has it."""

    def __init__(self, server, statement):
        super().__init__(server)
        self.statement = statement

    def work(self):
        if not self.conn.execute(f"SELECT {self.statement}(%s)", (KEY,)).fetchone()[0] in (True, ""):
            time.sleep(random.uniform(0.001, 0.02))
            return
        for _ in range(random.randrange(1, 4)):
            with self.conn.transaction():
                unit(self.conn, "old")
        unlocks(self.conn)
        time.sleep(random.uniform(0.001, 0.1))


class New(Stubborn):
    """A new worker, which waits in line for the lease, and works in fenced transactions."""

    session = None

    def prepare(self):
        if self.session:
            self.session.conn = self.conn
        else:
            self.session = Session(self.conn, "new", ttl="60 s")

    def work(self):
        if not self.session.acquire("r", queue=True).granted:
            self.session.wait("20 ms")
            return
        for _ in range(random.randrange(1, 6)):
            try:
                with self.conn.transaction():
                    self.session.check("r")
                    unit(self.conn, "new")
            except psycopg.errors.LockNotAvailable:
                time.sleep(0.005)
            except psycopg.Error as lost:
                if lost.sqlstate != "LF001":
                    raise
                return  # an old worker has had the lock
        self.session.release("r")
        time.sleep(random.uniform(0.001, 0.05))


def unit(conn, side):
    """Does one unit of work, and records its begin and end. The time until others see its commit does not count."""
    (number,) = conn.execute("INSERT INTO work (side, began) VALUES (%s, clock_timestamp()) RETURNING id", (side,)).fetchone()
    time.sleep(random.uniform(0, 0.004))
    conn.execute("UPDATE work SET ended = clock_timestamp() WHERE id = %s", (number,))


def done(server):
    return dict(server.query("SELECT side, count(*) FROM work GROUP BY side"))


def test_old_and_new_workers_never_overlap(bridged):
    bridged.query("DROP EXTENSION IF EXISTS eskit_lease")
    bridged.query("CREATE EXTENSION eskit_lease")
    bridged.query("SELECT eskit_lease.bridge_create('r', %s)", KEY)
    bridged.query(WORK)
    crew = [Old(bridged, "pg_try_advisory_lock"), Old(bridged, "pg_advisory_lock"), New(bridged), New(bridged)]
    for worker in crew:
        worker.start()
    try:
        for round in range(12):
            # Both sides make progress, whatever is killed.
            before = done(bridged)
            wait_until(lambda: all(done(bridged).get(side, 0) > before.get(side, 0) + 5 for side in ("old", "new")))
            if round == 6:
                kill(bridged, wait_until(lambda: workers(bridged))[0])
            else:
                bridged.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'eskit_lease worker'")
    finally:
        for worker in crew:
            worker.end()
    assert bridged.query(OVERLAPS) == []
    print(done(bridged))


def test_others_get_their_turns():
    """A worker that must stay for a bridge does not count among the workers that databases share."""
    server = Server("e2e-bridges-beside", "eskit_lease.max_workers = 1", "eskit_lease.min_ttl = '200 ms'")
    try:
        for name in ("bridged", "other"):
            server.query(f"CREATE DATABASE {name}")
            server.query("CREATE EXTENSION eskit_lease", dbname=name)
        with server.connect("bridged") as here, server.connect("other") as there:
            call(here, "bridge_create", "r", KEY)
            Session(here, "new", ttl="60 s").queue("r").wait_for("r")
            for _ in range(3):
                Session(there, "soon over", ttl="200 ms").acquire("plain")
                # No later call there names the session, so only a worker removes its row.
                wait_until(lambda: server.query("SELECT session FROM eskit_lease._sessions", dbname="other") == [])
            assert server.query("SELECT held FROM eskit_lease.bridges", dbname="bridged") == [(True,)]
    finally:
        server.stop()
