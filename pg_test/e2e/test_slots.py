"""PostgreSQL has fewer free worker processes than we may need, as parallel queries take them: waiting calls do the
workers' work."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from client import Session, call, stat
from conftest import Server, wait_until

DATABASES = 10
NO_SLOT = "no free background worker slot for database"


def make(name, *settings):
    server = Server(name, *settings)
    for n in range(1, DATABASES):
        server.query(f"CREATE DATABASE tenant{n}")
    for dbname in databases():
        server.query("CREATE EXTENSION eskit_lease", dbname=dbname)
    return server


def databases():
    return ["postgres", *(f"tenant{n}" for n in range(1, DATABASES))]


class Tenant(threading.Thread):
    """In its database one holder after another dies, while a waiter is in line."""

    def __init__(self, server, dbname, rounds):
        super().__init__()
        self.server, self.dbname, self.rounds, self.late, self.failure = server, dbname, rounds, [], None

    def run(self):
        try:
            with self.server.connect(self.dbname) as conn, self.server.connect(self.dbname) as other:
                for n in range(self.rounds):
                    leader, follower = Session(other, "leader", ttl="1 s"), Session(conn, "follower", ttl="60 s")
                    leader.take(f"r{n}")
                    follower.queue(f"r{n}")
                    leader.heartbeat()
                    self.late.append(follower.wait_for(f"r{n}") - leader.deadline)
                    follower.close()
        except Exception as failure:
            self.failure = failure
            raise


def late(server, rounds=5):
    """Returns how many seconds after the holders' deadlines leases are handed over, in all databases at once: the 99th
    percentile."""
    tenants = [Tenant(server, dbname, rounds) for dbname in databases()]
    for tenant in tenants:
        tenant.start()
    for tenant in tenants:
        tenant.join()
    assert not [tenant.failure for tenant in tenants if tenant.failure]
    late = sorted(ms for tenant in tenants for ms in tenant.late)
    assert late[0] > -0.010, "granted before the holder's deadline"
    shown = [round(late[len(late) * percent // 100] * 1000) for percent in (50, 99)]
    print(f"handed over {shown[0]} ms after the deadline, 99 of 100 within {shown[1]} ms")
    return late[len(late) * 99 // 100]


class Crowded:
    """A server whose parallel queries take all worker processes, or all but one. The launcher has one of its own,
    logical replication another."""

    def __init__(self, stack):
        self.stack = stack
        self.server = make("e2e-slots", "max_worker_processes = 5", "max_parallel_workers = 3", "max_parallel_workers_per_gather = 1")
        stack.callback(self.server.stop)
        self.server.query("CREATE TABLE busy AS SELECT generate_series(1, 100000) AS i")
        self.server.query("ALTER TABLE busy SET (parallel_workers = 1)")
        wait_until(lambda: not self.server.workers())

    def leave(self, free):
        pool = self.stack.enter_context(ThreadPoolExecutor())
        count = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'parallel worker'"
        while (taken := self.server.query(count)[0][0]) < 3 - free:
            conn = self.stack.enter_context(self.server.connect())
            conn.execute("SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0")
            query = pool.submit(conn.execute, "SELECT count(*) FROM busy WHERE pg_sleep(i % 2 + 1) IS NULL")
            try:
                wait_until(lambda: self.server.query(count) == [(taken + 1,)], timeout=2)
                self.stack.callback(conn.cancel)
            except AssertionError:  # a database worker was faster
                conn.cancel()
                query.exception()
        return self.server


@pytest.fixture(scope="module")
def crowded():
    with ExitStack() as stack:
        yield Crowded(stack)


# On an idle machine the figures are a tenth of these limits. Without the waiting calls' help they were seconds, or the
# waiters' timeout.
@pytest.mark.parametrize(("free", "limit"), [(1, 0.25), (0, 0.5)])
def test_ten_databases_are_served_with_few_processes_left(crowded, free, limit):
    server = crowded.leave(free)
    figures = [late(server)]
    if figures[0] > limit:
        figures.append(late(server))
    assert min(figures) <= limit, figures
    if not free:
        assert not server.workers()
        named = {dbname for dbname in databases() if server.logged(f'{NO_SLOT} "{dbname}"')}
        assert named == set(databases())
        assert len(server.logged(NO_SLOT)) == DATABASES, "one line for each, however often it is tried"
        assert server.logged("parallel queries may leave no process for database workers")


def test_what_nobody_does_is_told(crowded):
    """Without a waiting call, stats() shows a database as unserved until there is a process or such a call."""
    server = crowded.leave(0)
    with server.connect("tenant1") as conn, server.connect("tenant1") as other:
        leader, follower = Session(conn, "leader", ttl="1 s"), Session(conn, "follower", ttl="600 s")
        leader.take("untold")
        follower.queue("untold")
        wait_until(lambda: leader.expired(other) and stat(other, "unserved_ms") > 300)
        assert stat(other, "databases_unserved") >= 1  # the databases of the test before may have work left
        assert not follower.holds("untold")
        # A call in a transaction block does nothing for others, whose grants would wait for its end.
        with other.transaction():
            stranger = Session(other, "stranger", ttl="60 s")
            assert call(other, "session_wait", stranger.id, stranger.revision, "500 ms").reason == "timeout"
            assert not follower.holds("untold")
        # A call in a statement that may go on for long does nothing for others.
        wait = f"eskit_lease.session_wait('{stranger.id}', {stranger.revision}, '500 ms')"
        other.execute(f"DO $$ BEGIN PERFORM {wait}; END $$")
        assert not follower.holds("untold")
        # A call outside of both does the work at once, for any session, and then answers before its timeout.
        asked = time.monotonic()
        assert call(other, "session_wait", stranger.id, stranger.revision, "15 s").reason == "heartbeat"
        assert time.monotonic() < asked + 10
        assert follower.holds("untold")

        def served():
            call(other, "session_wait", stranger.id, stranger.revision, "100 ms")
            return stat(other, "unserved_ms") == 0

        wait_until(served)
