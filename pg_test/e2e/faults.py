"""Shared by the tests of faults: competitors that work under fences while something goes wrong, and what must hold
afterwards."""

import itertools
import random

import psycopg
from client import Session, Stubborn, stat
from conftest import wait_until

# For postgresql.conf: each line of the log has its SQLSTATE.
LOGS_SQLSTATES = "log_line_prefix = '%m [%p] %b %d %e '"

# The fenced transactions have run in the order of `id`, as they never overlap.
LEDGER = """
    CREATE TABLE ledger (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, resource text, fence bigint, writer text, what text)"""


class Competitor(Stubborn):
    """Acquires one of a few resources, writes in the ledger under the fence, and releases; over and over."""

    numbers = itertools.count()

    def __init__(self, server, resources, ttl):
        super().__init__(server)
        self.resources, self.ttl = resources, ttl
        self.session, self.confirmed, self.fences = None, [], set()

    def prepare(self):
        if self.session is None:
            self.session = Session(self.conn, self.name, ttl=self.ttl)
        self.session.conn = self.conn

    def work(self):
        resource = random.choice(self.resources)
        answer = self.session.acquire(resource, queue=True)
        if answer.granted:
            self.fences.add(answer.fence)
            try:
                for _ in range(3):
                    self.write(resource)
                self.session.release(resource)
            except psycopg.Error as error:
                if error.sqlstate != "LF001":
                    raise
        elif answer.reason in ("expired", "unknown_session"):
            self.session = None
            self.prepare()
        else:
            self.session.wait("20 ms")

    def write(self, resource):
        what, fence = f"{self.name} {next(self.numbers)}", self.session.fences[resource]
        with self.conn.transaction():
            self.session.check(resource)
            self.conn.execute(
                "INSERT INTO ledger (resource, fence, writer, what) VALUES (%s, %s, %s, %s)",
                (resource, fence, str(self.session.id), what),
            )
        self.confirmed.append(what)


class Competition:
    """Competitors that work during a `with`. `server` may change meanwhile."""

    def __init__(self, server, count=4, resources=("a", "b"), ttl="2 s"):
        server.query(LEDGER)
        self.competitors = [Competitor(server, resources, ttl) for _ in range(count)]

    def __enter__(self):
        for competitor in self.competitors:
            competitor.start()
        self.go_on()
        return self

    def __exit__(self, failure, *_):
        for competitor in self.competitors:
            competitor.stopping.set()
        for competitor in self.competitors:
            competitor.join()
        assert failure or not [competitor.failure for competitor in self.competitors if competitor.failure]

    def go_on(self, more=3):
        """Waits until each competitor has written more than before."""
        before = [len(competitor.confirmed) for competitor in self.competitors]

        def each_did():
            assert not [competitor.failure for competitor in self.competitors if competitor.failure]
            return all(len(c.confirmed) >= count + more for c, count in zip(self.competitors, before, strict=True))

        wait_until(each_did)

    def confirmed(self):
        return {what for competitor in self.competitors for what in list(competitor.confirmed)}

    def highest_fence(self):
        return max(fence for competitor in self.competitors for fence in list(competitor.fences))

    def prove(self, server, confirmed=None):
        """Checks that confirmed work (by default all) exists once, no fence has two holders, and no fence is used after
        a greater one."""
        falls = "SELECT * FROM (SELECT *, fence < max(fence) OVER (PARTITION BY resource ORDER BY id) AS falls FROM ledger) AS l WHERE falls"
        assert server.query(falls) == []
        assert server.query("SELECT fence FROM ledger GROUP BY 1 HAVING count(DISTINCT (resource, writer)) > 1") == []
        written = [what for (what,) in server.query("SELECT what FROM ledger")]
        assert len(written) == len(set(written))
        lost = (self.confirmed() if confirmed is None else confirmed) - set(written)
        assert not lost, lost


IS_LEFT = """
    SELECT 'sessions', count(*) FROM eskit_lease._sessions
    UNION ALL SELECT 'leases', count(*) FROM eskit_lease._leases WHERE session IS NOT NULL
    UNION ALL SELECT 'waiters', count(*) FROM eskit_lease._waiters
    UNION ALL SELECT 'members', count(*) FROM eskit_lease._members
    UNION ALL SELECT 'claims', count(*) FROM eskit_lease._claims
    UNION ALL SELECT name, value FROM eskit_lease.stats() WHERE name IN ('sessions_alive', 'resources_dirty', 'calls_waiting')
    UNION ALL SELECT 'guards', count(*) FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database
              WHERE l.locktype = 'advisory' AND l.objsubid BETWEEN 4501 AND 4506 AND d.datname = current_database()"""


def nothing_left(server, dbname="postgres"):
    """Closes all sessions, and waits until no row, slot, guard or place in line remains."""
    with server.connect(dbname) as conn:
        conn.execute("SELECT eskit_lease.session_close(session) FROM eskit_lease.sessions")

        def is_left():
            if not stat(conn, "sessions_alive"):
                conn.execute("SELECT eskit_lease.session_sweep()")  # for a server whose worker is stopped
            return [found for found in conn.execute(IS_LEFT).fetchall() if found[1]]

        try:
            wait_until(lambda: not is_left(), pause=0.02)
        except AssertionError as error:
            raise AssertionError(f"left behind: {is_left()}") from error


class Log:
    """The lines that a server logs from now on."""

    def __init__(self, server):
        self.file, self.start = server.log, server.log.stat().st_size

    def lines(self):
        with self.file.open(errors="replace") as file:
            file.seek(self.start)
            return file.read().splitlines()

    def is_clean(self, *but):
        """Checks that there was no internal error, failed assertion or crash, except expected ones."""
        bad = ("XX000", "XX001", "XX002", "PANIC", "TRAP:", "was terminated by signal")
        found = [line for line in self.lines() if any(sign in line for sign in bad) and not any(meant in line for meant in but)]
        assert not found, found[:5]
