"""Processes of a few consumers that take over from each other; a seed decides all of it. Each process shares its
session between connections, releases leases with grace and takes them back, holds permits, and goes on for a while
after another process has taken over. The oracle knows processes, not only fences: two processes that use one fence are
as wrong as two holders."""

import collections
import itertools
import random
import threading
import time
from typing import NamedTuple

import psycopg
from client import call
from conftest import wait_until

TABLES = """
    CREATE TABLE journal (place bigint GENERATED ALWAYS AS IDENTITY, resource text, fence bigint, process int);
    SELECT eskit_lease.semaphore_create('permits', 2)"""
PERMITS = {"one": 1, "other": 1, "permits": 2}
CONSUMERS, CONNECTIONS = 3, 2
# Rows of an exclusive lease are numbered in commit order, under a lock that is held to the commit.
ORDER = "SELECT pg_advisory_xact_lock(hashtext(%s))"
TWICE = """SELECT resource, session, count(*) FROM eskit_lease._leases WHERE session IS NOT NULL AND resource = 'permits'
           GROUP BY 1, 2 HAVING count(*) > 1"""
# A lost fence, another transaction in the way, a snapshot from before the grant, a deadlock, a session that has ended.
REFUSALS = {"LF001", "55P03", "40001", "40P01", "55000", "LF003"}


class Inside(NamedTuple):
    """A time in which a transaction has certainly passed its check and has not ended, by the clock of this program."""

    resource: str
    fence: int
    process: int
    start: float
    end: float


class Process:
    """A process of a consumer: its session, and each fence that it has received, including those of leases that it has
    released."""

    def __init__(self, stress, consumer, number, takeover):
        self.stress, self.number, self.random = stress, number, random.Random(f"{stress.seed} {number}")
        self.conn = stress.server.connect(stress.db)
        self.session = call(self.conn, "session_open", consumer, "1 s", False, "0", takeover).session
        self.fences, self.stopping = collections.deque(maxlen=12), threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(i,), daemon=True) for i in range(CONNECTIONS)]
        for thread in self.threads:
            thread.start()

    def run(self, index):
        chance = random.Random(f"{self.stress.seed} {self.number} {index}")
        try:
            with self.stress.server.connect(self.stress.db) as conn:
                while not self.stopping.is_set():
                    act = chance.choices([self.acquire, self.work, self.let_go, self.retake, self.wait], [3, 6, 1, 2, 1])[0]
                    try:
                        act(conn, chance)
                    except psycopg.Error as error:
                        if error.sqlstate not in REFUSALS:
                            raise
                        conn.rollback()
        except Exception as failure:
            self.stress.faults.append(f"process {self.number}: {failure!r}")

    def told(self, resource, fence):
        self.fences.append((resource, fence))
        whose = self.stress.told.setdefault((resource, fence), self.number)
        if whose != self.number:
            self.stress.faults.append(f"{resource}: process {self.number} was told fence {fence}, which process {whose} has been told")

    def acquire(self, conn, chance):
        resource = chance.choice(list(PERMITS))
        answer = call(conn, "lease_acquire", resource, self.session, chance.random() < 0.5)
        if answer.granted:
            self.told(resource, answer.fence)
        elif answer.reason == "queued" and chance.random() < 0.2:
            call(conn, "lease_cancel", resource, self.session)

    def known(self, chance):
        """Returns a fence of the process: mostly the newest, now and then one that may be lost."""
        fences = list(self.fences)
        return None if not fences else fences[-1] if chance.random() < 0.7 else chance.choice(fences)

    def work(self, conn, chance):
        if not (known := self.known(chance)):
            return self.acquire(conn, chance)
        resource, fence = known
        with conn.transaction(force_rollback=chance.random() < 0.1):
            call(conn, "fence_check", resource, fence)
            start = time.monotonic()
            if PERMITS[resource] == 1:
                conn.execute(ORDER, (resource,))
            time.sleep(chance.random() ** 4 * 0.05)
            conn.execute("INSERT INTO journal (resource, fence, process) VALUES (%s, %s, %s)", (resource, fence, self.number))
            self.stress.inside.append(Inside(resource, fence, self.number, start, time.monotonic()))

    def let_go(self, conn, chance):
        if known := self.known(chance):
            call(conn, "lease_release", *known, chance.choice(["0", "100 ms", "2 s", "2 s"]))

    def retake(self, conn, chance):
        """Takes a lease back out of grace, while other connections of the process work under its fence."""
        if known := self.known(chance):
            call(conn, "lease_release", *known, "2 s")
            self.work(conn, chance)
            answer = call(conn, "lease_acquire", known[0], self.session, chance.random() < 0.5)
            if answer.granted:
                self.told(known[0], answer.fence)

    def wait(self, conn, chance):
        revision = call(conn, "session_heartbeat", self.session).revision
        if revision is not None:
            call(conn, "session_wait", self.session, revision, "20 ms")

    def end(self, close):
        self.stopping.set()
        for thread in self.threads:
            thread.join()
        if close:
            call(self.conn, "session_close", self.session)
        self.conn.close()


class Stress:
    def __init__(self, server, db, seed, seconds):
        self.server, self.db, self.seed, self.seconds = server, db, seed, seconds
        self.told, self.inside, self.faults, self.numbers = {}, [], [], itertools.count()

    def consumer(self, name, until):
        """Runs one process after another; a former process goes on beside the next for a while."""
        chance, former = random.Random(f"{self.seed} {name}"), []
        process = None
        while time.monotonic() < until and not self.faults:
            end = chance.choice(["close", "die", "be taken over", "be taken over"])
            if process and end != "be taken over":
                process.end(close=end == "close")
            elif process:
                former.append(process)
            process = Process(self, name, next(self.numbers), takeover=end == "be taken over")
            time.sleep(chance.uniform(0.05, 0.6))
            while len(former) > 1 or former and chance.random() < 0.5:
                former.pop(0).end(close=False)
        for left in [*former, process]:
            left.end(close=True)

    def watch(self, until):
        with self.server.connect(self.db) as conn:
            while time.monotonic() < until:
                self.faults += [f"a session has two permits: {row}" for row in conn.execute(TWICE)]
                time.sleep(0.02)

    def run(self):
        self.server.query(TABLES, dbname=self.db)
        until = time.monotonic() + self.seconds
        threads = [threading.Thread(target=self.consumer, args=(f"consumer {i}", until)) for i in range(CONSUMERS)]
        threads.append(threading.Thread(target=self.watch, args=(until,)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        journal = self.server.query("SELECT resource, fence, process FROM journal ORDER BY place", dbname=self.db)
        self.faults += [*written_by_two(journal), *out_of_order(journal), *too_many(self.inside)]
        held = "SELECT count(*) FROM eskit_lease.leases WHERE state IN ('held', 'grace')"
        print(f"{next(self.numbers)} processes, {len(self.told)} fences, {len(journal)} transactions under {len(set(journal))} of them, "
              f"{len(self.inside) - len(journal)} rolled back")  # fmt: skip
        assert not self.faults, "\n".join(self.faults[:20])
        wait_until(lambda: self.server.query(held, dbname=self.db) == [(0,)])
        return journal


def written_by_two(journal):
    """Finds fences under which several processes have written."""
    writers = collections.defaultdict(set)
    for resource, fence, process in journal:
        writers[resource, fence].add(process)
    return [f"{resource}: processes {sorted(who)} wrote under fence {fence}" for (resource, fence), who in writers.items() if len(who) > 1]


def out_of_order(journal):
    """Finds commits of an exclusive lease under a lower fence than an earlier commit."""
    newest = collections.defaultdict(int)
    for resource, fence, process in journal:
        if PERMITS[resource] == 1:
            if fence < newest[resource]:
                yield f"{resource}: process {process} wrote under fence {fence} after fence {newest[resource]}"
            newest[resource] = max(newest[resource], fence)


def too_many(inside):
    """Finds more holders at one time than there are permits, and processes that hold two permits."""
    events = sorted(itertools.chain.from_iterable(((it.start, 1, it), (it.end, 0, it)) for it in inside), key=lambda event: event[:2])
    active = collections.defaultdict(collections.Counter)
    for _, begins, it in events:
        holders = active[it.resource]
        holders[it.fence, it.process] += 1 if begins else -1
        holders = [holder for holder, count in holders.items() if count > 0]
        processes = {process for _, process in holders}
        if begins and (len(holders) > PERMITS[it.resource] or len(processes) < len(holders)):
            yield f"{it.resource}: {holders} (fence, process) at one time"
