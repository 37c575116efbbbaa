"""Hundreds of databases come and go, each with the extension, sessions and work for the worker: made from a template,
renamed, used as a template, dropped. The table of databases in shared memory has room for a few of them, and is never
full for those that exist."""

import itertools
import os
import random
import re
import threading
import time

import psycopg
import pytest
from client import Session, call, stat
from conftest import Server, once, wait_until
from faults import LOGS_SQLSTATES, Competition, Log, nothing_left


DATABASES = int(os.environ.get("SOAK_DATABASES", "100"))
AT_ONCE = 3


class Maker(threading.Thread):
    """Makes databases, lets them live for a moment, and drops them."""

    def __init__(self, server, numbers):
        super().__init__()
        self.server, self.numbers, self.failure = server, numbers, None

    def run(self):
        try:
            for number in self.numbers:
                self.make(number)
        except Exception as failure:
            self.failure = failure
            raise

    def make(self, number):
        self.name = f"db_{number}"
        strategy = random.choice(["wal_log", "file_copy"])
        self.server.query(f"CREATE DATABASE {self.name} TEMPLATE original STRATEGY {strategy}")
        fence = self.live(self.name, 0)
        if number % 5 == 0:
            self.server.query(f"ALTER DATABASE {self.name} RENAME TO {self.name}_renamed")
            self.name += "_renamed"
            fence = self.live(self.name, fence)
        if number % 7 == 0:
            self.server.query(f"CREATE DATABASE {self.name}_copy TEMPLATE {self.name}")
            self.live(f"{self.name}_copy", fence)
            self.drop(f"{self.name}_copy")
        self.drop(self.name)

    def live(self, name, above):
        with self.server.connect(name) as conn:
            holder, waiter = Session(conn, "holder", ttl="60 s"), Session(conn, "waiter", ttl="60 s")
            # In the copy no session holds what the original's sessions hold.
            fence = holder.take("r")
            assert fence > above and waiter.acquire("r", queue=True).reason == "queued"
            assert holder.release("r")
            wait_until(lambda: waiter.holds("r"))
            Session(conn, "soon over").acquire("s")  # so that the worker has something to do
            assert waiter.close()
            return waiter.fences["r"]

    def drop(self, name):
        self.server.query(f"DROP DATABASE {name} {random.choice(['', 'WITH (FORCE)'])}")


@once
def test_hundreds_come_and_go():
    server = Server("e2e-databases", "eskit_lease.max_databases = 8", "max_wal_size = '2GB'", LOGS_SQLSTATES)
    try:
        server.query("CREATE EXTENSION eskit_lease")
        server.query("CREATE DATABASE original")
        server.query("CREATE EXTENSION eskit_lease", dbname="original")
        with server.connect("original") as conn:
            kept = Session(conn, "kept", ttl="1 h")
            kept.take("r")
        wait_until(lambda: not server.query("SELECT FROM pg_stat_activity WHERE datname = 'original'"))
        log, pid, started_at = Log(server), server.pid, time.monotonic()
        with Competition(server, count=2) as competition, server.connect() as conn:
            here = Session(conn, "here", ttl="1 h")
            fence = here.take("here")
            numbers = iter(range(DATABASES))
            makers = [Maker(server, Shared(numbers)) for _ in range(AT_ONCE)]
            for maker in makers:
                maker.start()
            for maker in makers:
                maker.join()
            assert not [maker.failure for maker in makers if maker.failure]
            competition.go_on()
            assert here.heartbeat().alive and here.renew("here").held and here.fences["here"] == fence
        print(f"{DATABASES} databases in {time.monotonic() - started_at:.0f} s")
        competition.prove(server)
        with server.connect("original") as conn:
            assert call(conn, "session_heartbeat", kept.id).alive, "what became of the copies is nothing to the original"
            assert call(conn, "lease_renew", "r", kept.fences["r"]).held
        assert server.pid == pid and server.workers("launcher")
        nothing_left(server)
        nothing_left(server, "original")
        log.is_clean()
    finally:
        server.stop()


class Shared:
    """An iterator that several threads share."""

    def __init__(self, numbers):
        self.numbers, self.lock = numbers, threading.Lock()

    def __iter__(self):
        return self

    def __next__(self):
        with self.lock:
            return next(self.numbers)


def test_a_dropped_database_gives_its_place_to_the_next_at_once():
    """A call that finds the table full looks for entries of dropped databases."""
    server = Server("e2e-few", "eskit_lease.max_databases = 2", "eskit_lease.worker = off")
    try:
        server.query("CREATE EXTENSION eskit_lease")
        with server.connect() as conn:
            here = Session(conn, "here", ttl="600 s")
            for i in range(5):
                conn.execute(f"CREATE DATABASE other_{i}")
                server.query("CREATE EXTENSION eskit_lease", dbname=f"other_{i}")
                with server.connect(f"other_{i}") as other:
                    assert Session(other, "there", ttl="600 s").take("r")
                    conn.execute("CREATE DATABASE third")
                    server.query("CREATE EXTENSION eskit_lease", dbname="third")
                    with server.connect("third") as third, pytest.raises(psycopg.Error) as full:
                        Session(third, "one too many")
                    assert full.value.sqlstate == "53400" and full.value.diag.message_hint
                    assert stat(other, "sessions_alive") == 1
                conn.execute(f"DROP DATABASE other_{i} WITH (FORCE)")
                conn.execute("DROP DATABASE third WITH (FORCE)")
            assert here.heartbeat().alive
    finally:
        server.stop()


def test_databases_that_always_have_work_share_the_workers():
    """An idle worker stays only as long as no other database waits for a worker."""
    server = Server("e2e-shared-workers", "eskit_lease.max_workers = 1")
    over, busy, threads = threading.Event(), {"postgres": 1, "busy": 500}, []
    try:
        for name in ("busy", "quiet"):
            server.query(f"CREATE DATABASE {name}")
        for name in (*busy, "quiet"):
            server.query("CREATE EXTENSION eskit_lease", dbname=name)

        def keep_busy(name, times):
            with server.connect(name) as conn:
                worker = Session(conn, "busy", ttl="1 h")
                # Repeated so often that something is due at any moment.
                again = f"""DO $$ DECLARE own bigint; BEGIN FOR i IN 1..{times} LOOP
                    own := (SELECT fence FROM eskit_lease.lease_acquire('r', '{worker.id}'));
                    PERFORM eskit_lease.lease_release('r', own);
                    COMMIT; END LOOP; END $$"""
                while not over.wait(0.1 if times == 1 else 0):
                    conn.execute(again)

        threads += [threading.Thread(target=keep_busy, args=item) for item in busy.items()]
        for thread in threads:
            thread.start()
        with server.connect("quiet") as conn, server.connect() as other:
            for _ in range(3):
                holder, waiter = Session(conn, "holder", ttl="1 s"), Session(conn, "waiter", ttl="1 h")
                holder.take("r")
                # The waiter makes no further call, so only the worker can grant it the lease.
                assert waiter.acquire("r", queue=True).reason == "queued"
                wait_until(lambda: waiter.holds("r"))
                assert waiter.close()
            done = stat(other, "notifications")
            wait_until(lambda: stat(other, "notifications") > done)
    finally:
        over.set()
        for thread in threads:
            thread.join()
        server.stop()


def test_after_a_restart_each_is_looked_into_without_a_pause():
    """An idle worker stays for a second, but not while databases wait for their first visit."""
    server = Server("e2e-visits", "eskit_lease.max_workers = 1", "log_min_messages = debug1", "log_line_prefix = '%n '")
    try:
        server.query("CREATE EXTENSION eskit_lease", dbname="template1")
        for number in range(10):
            server.query(f"CREATE DATABASE d{number}")
        all_of_them = {oid for (oid,) in server.query("SELECT oid FROM pg_database WHERE datallowconn")}
        before = len(server.log.read_text())
        server.restart()

        def starts():
            """Returns when a worker was started for which database, since the restart."""
            pattern = r'^([\d.]+) .*starting background worker process "eskit_lease worker for database (\d+)"'
            found = re.findall(pattern, server.log.read_text()[before:], re.MULTILINE)
            return [(float(at), int(oid)) for at, oid in found]

        wait_until(lambda: {oid for _, oid in starts()} == all_of_them, pause=0.1)
        times = [at for at, _ in starts()]
        pauses = [later - at for at, later in itertools.pairwise(times) if later - at > 0.9]
        assert len(pauses) < len(times) / 4, (pauses, times)
    finally:
        server.stop()
