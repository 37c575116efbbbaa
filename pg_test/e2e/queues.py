"""Six kinds of queues under workers that take over from each other, with prepared transactions, broken connections and
crashes; all by a seed. queue_workers.py has the workers, queue_oracle.py judges their journal."""

import collections
import itertools
import os
import random
import signal
import threading
import time
from typing import NamedTuple

import psycopg
from client import call
from conftest import wait_until
from queue_workers import BACKOFF, MAX_ATTEMPTS, PARTITIONS, QUEUES, Process

CONSUMERS, NAME = 4, "queue stress"
SERVER = ("max_prepared_transactions = 50", "eskit_lease.min_ttl = '200ms'")
TABLES = f"""
    CREATE TABLE journal (
        place bigint GENERATED ALWAYS AS IDENTITY, token bigint, what text, queue text, item bigint, key text, number bigint,
        fence bigint, attempt int, session uuid, began float8, at float8 DEFAULT extract(epoch FROM clock_timestamp()), due float8);
    SELECT eskit_lease.group_create('g', {PARTITIONS}, rebalance_timeout => '200 ms')"""
EVENTS = {"add", "claim", "done", "fail", "dead", "unclaim", "requeue"}


class Stress:
    def __init__(self, server, seed, seconds, crashes):
        self.server, self.seed, self.seconds, self.crashes = server, seed, seconds, crashes
        self.tokens, self.numbers, self.processes = itertools.count(1), itertools.count(1), itertools.count()
        self.committed, self.sessions, self.faults, self.items = {}, {}, [], collections.Counter()
        self.sessions_of = collections.defaultdict(list)
        self.over, self.peace = threading.Event(), threading.Event()

    def connect(self):
        return self.server.connect(application_name=NAME)

    def prepare(self):
        self.server.query("CREATE EXTENSION eskit_lease")
        self.server.query(TABLES)
        with self.server.connect() as conn:
            for queue, (order, group) in QUEUES.items():
                call(conn, "queue_create", queue, MAX_ATTEMPTS, f"{BACKOFF} s", order, group or None)

    def consumer(self, name):
        """Runs one process after another; a former process goes on beside the next for a while."""
        chance, former, process = random.Random(f"{self.seed} {name}"), [], None
        while not self.over.is_set() and not self.faults:
            takes_over = bool(process) and chance.random() < 0.6
            try:
                new = Process(self, name, next(self.processes), takes_over)
            except psycopg.OperationalError:  # the server is restarting
                time.sleep(0.05)
                continue
            former += [process] if process else []
            process = new
            time.sleep(chance.uniform(0.3, 1.5))
            while len(former) > 1 or former and chance.random() < 0.5:
                former.pop(0).end()
        for left in filter(None, [*former, process]):
            left.end()

    def resolve(self):
        """Commits or rolls back prepared transactions, sooner or later."""
        chance = random.Random(f"{self.seed} resolver")
        while not self.peace.is_set():
            try:
                with self.server.connect() as conn:
                    while not self.peace.is_set():
                        self.resolve_some(conn, chance, 0.15)
                        time.sleep(0.05)
            except psycopg.OperationalError:
                time.sleep(0.05)

    def resolve_some(self, conn, chance, share):
        for (gid,) in conn.execute("SELECT gid FROM pg_prepared_xacts").fetchall():
            if chance.random() < share:
                commits = chance.random() < 0.6
                conn.execute(f"{'COMMIT' if commits else 'ROLLBACK'} PREPARED '{gid}'")
                if commits:
                    self.committed[int(gid)] = time.time()

    def faulty(self):
        """Ends or stops a connection in the middle of a call, and crashes the server."""
        chance = random.Random(f"{self.seed} faults")
        crashes = [time.time() + self.seconds * (n + 0.5) / self.crashes for n in range(self.crashes)]
        victim = f"SELECT pid FROM pg_stat_activity WHERE application_name = '{NAME}' ORDER BY random() LIMIT 1"
        while not self.over.is_set():
            time.sleep(chance.uniform(0.2, 0.6))
            if crashes and time.time() > crashes[0]:
                crashes.pop(0)
                self.server.crash()
            elif found := self.server.query(victim):
                if chance.random() < 0.7:
                    self.server.query("SELECT pg_terminate_backend(%s)", found[0][0])
                else:
                    stop(found[0][0], chance.uniform(0.1, 1.2))

    def run(self):
        """Runs everything, and returns the journal in its order."""
        self.prepare()
        ends = time.time() + self.seconds
        resolver = threading.Thread(target=self.resolve)
        threads = [threading.Thread(target=self.consumer, args=(f"consumer {i}",)) for i in range(CONSUMERS)]
        threads.append(threading.Thread(target=self.faulty))
        for thread in [resolver, *threads]:
            thread.start()
        while time.time() < ends or not (self.faults or self.has_had_all()) and time.time() < ends + 60:
            time.sleep(0.05)
        self.over.set()
        for thread in threads:
            thread.join()
        self.peace.set()
        resolver.join()
        with self.server.connect() as conn:
            self.resolve_some(conn, random.Random(f"{self.seed} end"), 1)
            self.drain(conn)
            journal = conn.execute(f"SELECT {', '.join(Event._fields)} FROM journal ORDER BY place")
            return [Event(*row) for row in journal]

    def has_had_all(self):
        """Returns whether each kind of event was met, and each queue done, which takes longer on a slow machine."""
        try:
            had = "SELECT array_agg(DISTINCT what), array_agg(DISTINCT queue) FILTER (WHERE what = 'done') FROM journal"
            ((events, queues),) = self.server.query(had)
        except psycopg.OperationalError:  # the server is restarting
            return False
        return set(events or []) == EVENTS and set(queues or []) == set(QUEUES)

    def drain(self, conn):
        """Lets workers that make no trouble finish everything."""
        workers = [Process(self, f"drain {number}", next(self.processes), peaceful=True) for number in range(3)]
        left = "SELECT (SELECT count(*) FROM eskit_lease.items) + (SELECT count(*) FROM eskit_lease.dead_items)"
        try:
            wait_until(lambda: self.faults or conn.execute(left).fetchone() == (0,), pause=0.05)
        finally:
            for worker in workers:
                worker.end()
                call(conn, "session_close", worker.session.id)
        heads = conn.execute("SELECT count(*) FROM eskit_lease._item_heads").fetchone()[0]
        assert self.faults or heads == 0, f"heads of {heads} keys are left, which have no items"


class Event(NamedTuple):
    """A line of the journal. `began` and `at`: before the call, and after it."""

    place: int
    token: int
    what: str
    queue: str
    item: int
    key: str | None = None
    number: int | None = None
    fence: int | None = None
    attempt: int | None = None
    session: object = None
    began: float = 0
    at: float = 0
    due: float | None = None


def stop(pid, seconds):
    try:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:  # it has just ended
        pass
