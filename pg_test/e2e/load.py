"""Consumers that go on across a failover. Each answer is recorded, and must agree with what has survived.

Each consumer competes for a few resources. One fenced transaction writes a row of the journal, adds an item, and begins
a run-once key that other consumers also try to begin. A consumer finishes the items that it claims in the transaction
that notes them. Like the loop of docs/consumer.md, it knows nothing of failovers: when its connection breaks it
connects again, acquires again what it had, and gives up what is refused."""

import itertools
import math
import random
import time
from typing import NamedTuple

import psycopg
from client import Session, Stubborn, call, rows
from conftest import wait_until
from psycopg.conninfo import make_conninfo
from psycopg.types.json import Jsonb

RESOURCES = [f"resource {number}" for number in range(4)]
# Rows of a resource are numbered in commit order, under a lock that is held to the commit.
TABLES = """
    CREATE EXTENSION IF NOT EXISTS eskit_lease;
    CREATE TABLE journal (place bigint GENERATED ALWAYS AS IDENTITY, what text, name text, fence bigint, session uuid, tag text);
    SELECT eskit_lease.queue_create('q');
    -- As if restored from a server that had failed over a few times.
    SELECT setval('eskit_lease._item_seq', 5::bigint << 40);
"""
ORDER = "SELECT pg_advisory_xact_lock(77, hashtext(%s))"
NOTE = "INSERT INTO journal (what, name, fence, session, tag) VALUES (%s, %s, %s, %s, %s)"
TIMELINE = "SELECT ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int"
REFUSALS = ("LF001", "55P03", "40001", "55000", "LF003")


class Either:
    """Two servers, as a client lists them that wants the primary: it gets the first one that accepts writes."""

    def __init__(self, *servers, name):
        hosts, ports = (",".join(str(value) for value in values) for values in zip(*((s.host, s.port) for s in servers), strict=True))
        self.dsn = make_conninfo(
            host=hosts, port=ports, user="postgres", dbname="postgres", application_name=name,
            target_session_attrs="read-write", connect_timeout=5,
        )  # fmt: skip

    def connect(self):
        return psycopg.connect(self.dsn, autocommit=True)


class Told(NamedTuple):
    """An answer: its timeline, its client, and its time by this process's clock."""

    timeline: int
    session: object
    asked_at: float
    told_at: float
    verb: str
    args: tuple
    answer: list


class Written(NamedTuple):
    """A transaction whose commit was acknowledged: its timeline and time."""

    consumer: "Consumer"
    timeline: int
    told_at: float
    tag: str


class Consumer(Stubborn):
    def __init__(self, server, name, load):
        super().__init__(server)
        self.name, self.load, self.tags = name, load, itertools.count(1)
        self.session, self.fences, self.timeline = None, {}, None

    def ask(self, verb, *args):
        asked_at = time.monotonic()
        answer = rows(self.conn, verb, *args)
        self.load.history.append(Told(self.timeline, self.session, asked_at, time.monotonic(), verb, args, answer))
        return answer

    def prepare(self):
        (self.timeline,) = self.conn.execute(TIMELINE).fetchone()  # a standby raises
        for resource, fence in list(self.fences.items()):
            self.ask("lease_renew", resource, fence)
            self.acquire(resource)

    def work(self):
        try:
            self.step()
        except psycopg.Error as error:
            if error.sqlstate not in REFUSALS:
                raise
            self.fences.clear()  # rolled back; the session acquires again what it still holds
        time.sleep(random.uniform(0, 0.02))

    def step(self):
        if not self.session:
            asked_at = time.monotonic()
            self.session = Session(self.conn, self.name, ttl=f"{self.load.ttl} s").id
            self.load.opened[self.session] = (self.timeline, asked_at, time.monotonic())
        elif not self.ask("session_heartbeat", self.session)[0].alive:
            self.session = None
            self.fences.clear()
            return
        resource = random.choice(RESOURCES)
        if resource in self.fences or self.acquire(resource):
            self.write(resource, self.fences[resource])
            if random.random() < 0.3:
                self.ask("lease_release", resource, self.fences.pop(resource))
        self.finish_items()

    def acquire(self, resource):
        (answer,) = self.ask("lease_acquire", resource, self.session)
        self.fences.pop(resource, None)
        if answer.granted:
            self.fences[resource] = answer.fence
        return answer.granted

    def write(self, resource, fence):
        key = str(int((time.monotonic() - random.expovariate(1)) * 20))  # a recent key, which others try, too
        tag = f"{self.name}/{next(self.tags)}"
        with self.conn.transaction():
            self.ask("fence_check", resource, fence)
            self.conn.execute(ORDER, (resource,))
            self.conn.execute(NOTE, ("lease", resource, fence, self.session, tag))
            (begun,) = self.ask("execution_begin", key, self.session)
            if begun.first:
                self.conn.execute(NOTE, ("key", key, begun.fence, self.session, tag))
                self.ask("execution_finish", key, begun.fence)
            ((item,),) = self.ask("item_add", "q", Jsonb(tag))
            self.conn.execute(NOTE, ("added", item, fence, self.session, tag))
        self.load.acknowledged.append(Written(self, self.timeline, time.monotonic(), tag))

    def finish_items(self):
        claimed = self.ask("item_claim", "q", self.session, 3)
        if claimed:
            tag = f"{self.name}/{next(self.tags)}"
            finish(self.conn, claimed, self.session, tag)
            self.load.acknowledged.append(Written(self, self.timeline, time.monotonic(), tag))


def finish(conn, claimed, session, tag):
    with conn.transaction():
        call(conn, "item_done", [item.id for item in claimed], claimed[0].fence)
        for item in claimed:
            conn.execute(NOTE, ("done", item.id, item.fence, session, tag))


class Load:
    """Some consumers for each of the servers, and the answers that they got."""

    def __init__(self, *servers, ttl, each=3):
        self.ttl, self.history, self.opened, self.acknowledged = ttl, [], {}, []
        self.of = {server: [Consumer(server, f"consumer {number}.{i}", self) for i in range(each)] for number, server in enumerate(servers)}
        self.consumers = [consumer for consumers in self.of.values() for consumer in consumers]

    def __enter__(self):
        for consumer in self.consumers:
            consumer.start()
        return self

    def __exit__(self, *_):
        for consumer in self.consumers:
            consumer.stopping.set()

    def works(self, timeline=None, server=None, writes=5):
        """Waits until each consumer, or each of one server, has written `writes` more rows, on `timeline` if given."""
        before, waiting = len(self.acknowledged), self.of.get(server, self.consumers)

        def done():
            assert all(consumer.failure is None for consumer in self.consumers)
            new = [write.consumer for write in self.acknowledged[before:] if timeline in (None, write.timeline)]
            return all(new.count(consumer) >= writes for consumer in waiting)

        wait_until(done, pause=0.02)

    def end(self, conn):
        """Stops the consumers; another session finishes the remaining items."""
        for consumer in self.consumers:
            consumer.end()
            if consumer.session:
                call(conn, "session_close", consumer.session)
        last = Session(conn, "last", ttl="1 h")

        def drained():
            while claimed := rows(conn, "item_claim", "q", last.id, 1000):
                finish(conn, claimed, last.id, "last")
            return conn.execute("SELECT items FROM eskit_lease.queues").fetchone() == (0,)

        wait_until(drained, pause=0.05)
        assert last.close()

    # ---- what must hold ----

    def check(self, conn, since, lost_from):
        """`since`: for each timeline except the first, a time before its beginning. `lost_from`: for each timeline
        whose end may be lost, the time from which on writes may be lost. Returns how many writes are lost."""
        check_journal(conn)
        self.check_fences()
        self.check_sessions(since, lost_from)
        survived = {tag for (tag,) in conn.execute("SELECT tag FROM journal")}
        lost = [write for write in self.acknowledged if write.tag not in survived]
        assert [write for write in lost if not write.told_at > lost_from.get(write.timeline, math.inf)] == []
        given = {(args[0], answer[0].fence, session) for _, session, _, _, verb, args, answer in self.history
                 if verb == "lease_acquire" and answer[0].granted}  # fmt: skip
        written = conn.execute("SELECT DISTINCT name, fence, session FROM journal WHERE what = 'lease' AND name = ANY(%s)", (RESOURCES,))
        assert set(written) <= given
        return len(lost)

    def fences(self, reasons):
        """Gives timeline and fence of all grants with one of these reasons, and of attempts and claims."""
        for told in self.history:
            first = told.answer[0] if told.answer else None
            if told.verb == "lease_acquire" and first.reason in reasons or told.verb == "execution_begin" and first.first:
                yield told.timeline, first.fence
            elif told.verb == "item_claim" and first:
                yield told.timeline, first.fence

    def check_fences(self):
        """Checks that no fence is granted twice, and that a timeline's fences are above all that were ever answered on
        earlier timelines."""
        granted = list(self.fences(("granted", "refenced")))
        assert len({fence for _, fence in granted}) == len(granted)
        timelines = sorted({timeline for timeline, _ in granted})
        answered = list(self.fences(("granted", "refenced", "already_held")))
        for timeline, following in itertools.pairwise(timelines):
            greatest = max(fence for on, fence in answered if on <= timeline)
            assert min(fence for on, fence in answered if on >= following) > greatest
            renewed = [told for told in self.history if told.verb == "lease_renew" and told.timeline >= following and told.answer[0].held]
            assert all((told.args[1] > greatest) == (told.answer[0].reason == "held") for told in renewed if told.timeline == following)
            assert any(on == following for on, _ in self.fences(("refenced",)))
        items = [told.answer[0][0] for told in self.history if told.verb == "item_add"]
        assert len(set(items)) == len(items)

    def check_sessions(self, since, lost_from):
        """Checks that no client is told that its session has ended before its TTL is over.

        The TTL counts from the last answer and from the timeline's beginning."""
        alive = {}
        for told in self.history:
            if told.verb != "session_heartbeat":
                continue
            opened_on, opened_at, known_at = self.opened[told.session]
            begun = since[told.timeline] if opened_on < told.timeline else opened_at
            if told.answer[0].alive:
                alive[told.session, told.timeline] = told.asked_at
            elif (told.answer[0].reason, opened_on < told.timeline) == ("unknown_session", True) and known_at > lost_from.get(opened_on, math.inf):
                pass
            else:
                last = max(begun, alive.get((told.session, told.timeline), begun))
                assert told.told_at >= last + self.ttl, told


def check_journal(conn):
    """Checks that nothing was done twice, and no other session wrote beside the holder."""
    falls = """SELECT * FROM (SELECT *, lag(fence) OVER (PARTITION BY name ORDER BY place) AS before FROM journal WHERE what = 'lease') AS j
               WHERE fence < before"""
    assert conn.execute(falls).fetchall() == []
    shared = "SELECT fence FROM journal WHERE what <> 'added' GROUP BY fence HAVING count(DISTINCT session) > 1"
    assert conn.execute(shared).fetchall() == []
    twice = "SELECT what, name FROM journal WHERE what <> 'lease' GROUP BY 1, 2 HAVING count(*) > 1"
    assert conn.execute(twice).fetchall() == []
    for what, done in (
        ("key", "SELECT key FROM eskit_lease.executions WHERE state = 'done'"),
        ("added", "SELECT name FROM journal WHERE what = 'done'"),
    ):
        noted = conn.execute("SELECT name FROM journal WHERE what = %s", (what,)).fetchall()
        assert set(noted) == set(conn.execute(done).fetchall()) != set()
