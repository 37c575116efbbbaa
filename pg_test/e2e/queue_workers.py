"""A worker of queues, as a process of a consumer. It fails items, sleeps beyond its TTL, rolls back, prepares
transactions and leaves them behind.

Each act notes in the journal what it does, in the same transaction and after the call. So the journal has what was
committed."""

import collections
import random
import threading
import time
from datetime import UTC, datetime
from typing import NamedTuple

import psycopg
from client import call, rows
from psycopg.types.json import Jsonb

MAX_ATTEMPTS, BACKOFF, PARTITIONS = 3, 0.05, 6
# Queues with and without an order, with and without a group. Each also has keys, delays and dead items.
QUEUES = {f"{order}{group}": (order, group) for order in ("none", "key", "fifo") for group in ("", "g")}
NOTE = """INSERT INTO journal (token, what, queue, item, key, number, fence, attempt, session, began, due)
          VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"""
CONNECTIONS, KEYS, MOST = 2, 5, 40
TTLS = [0.4, 1.0]
# A lost fence, an item that another transaction has locked, a deadlock, a session that has ended or is no member yet,
# no dead item.
REFUSALS = {"LF001", "55P03", "40001", "40P01", "55000", "LF003", "42704"}


class Held(NamedTuple):
    """An item as the claim returned it."""

    queue: str
    id: int
    key: str | None
    fence: int
    attempt: int
    session: "Session"


class Session:
    """The facts of a session: until when it has certainly lived, from when it may have ended, and by when it had
    ended."""

    def __init__(self, id, ttl, asked_at):
        self.id, self.ttl, self.alive_until = id, ttl, asked_at + ttl
        self.ending_from, self.ended_by = float("inf"), float("inf")

    def heard(self, asked_at, alive):
        if alive:
            self.alive_until = max(self.alive_until, asked_at + self.ttl)
        else:
            self.ended_by = min(self.ended_by, time.time())


class Act:
    """One transaction, which is committed, rolled back, or prepared for another connection to decide."""

    def __init__(self, process, conn, chance, peaceful):
        self.process, self.stress, self.conn, self.chance = process, process.stress, conn, chance
        self.token, self.gained, self.lost = next(process.stress.tokens), [], []
        ends = ["COMMIT", "ROLLBACK", f"PREPARE TRANSACTION '{self.token}'"]
        self.ends = "COMMIT" if peaceful else chance.choices(ends, [85, 8, 7])[0]

    def note(self, what, queue, item, began, **more):
        names = "key", "number", "fence", "attempt", "session", "due"
        key, number, fence, attempt, session, due = (more.pop(name, None) for name in names)
        assert not more, more
        self.conn.execute(NOTE, (self.token, what, queue, item, key, number, fence, attempt, session, began, due))

    def __enter__(self):
        self.conn.execute("BEGIN")
        return self

    def __exit__(self, kind, error, trace):
        if kind is None:
            self.process.pause()
            self.conn.execute(self.ends)
            if self.ends == "COMMIT":
                self.stress.committed[self.token] = time.time()
            if self.ends != "ROLLBACK":
                self.process.held.extend(self.gained)
                self.process.forget(self.lost)
        elif not self.conn.closed:
            self.conn.execute("ROLLBACK")


class Process:
    """A worker of a consumer, with one session for two connections."""

    def __init__(self, stress, consumer, number, takeover=False, peaceful=False):
        self.stress, self.peaceful, self.held, self.stopped_until = stress, peaceful, collections.deque(maxlen=60), 0
        self.stopping, self.joined, chance = threading.Event(), False, random.Random(f"{stress.seed} {number}")
        self.ttl = 2.0 if peaceful else chance.choice(TTLS)
        asked_at, former = time.time(), stress.sessions_of[consumer] if takeover else []
        for session in former:
            session.ending_from = min(session.ending_from, asked_at)
        with stress.connect() as conn:
            opened = call(conn, "session_open", consumer, f"{self.ttl} s", False, "0", takeover)
        for session in former:
            session.ended_by = min(session.ended_by, time.time())
        self.session = stress.sessions[opened.session] = Session(opened.session, self.ttl, asked_at)
        stress.sessions_of[consumer].append(self.session)
        seeds = [f"{stress.seed} {number} {i}" for i in range(CONNECTIONS)]
        self.threads = [threading.Thread(target=self.run, args=(seed,), daemon=True) for seed in seeds]
        for thread in self.threads:
            thread.start()

    def pause(self):
        """Waits while the process is stopped, which may be between any two of its statements."""
        while not self.stopping.is_set() and time.time() < self.stopped_until:
            time.sleep(0.01)

    def run(self, seed):
        chance = random.Random(seed)
        try:
            while not self.stopping.is_set():
                try:
                    with self.stress.connect() as conn:
                        while not self.stopping.is_set():
                            self.act(conn, chance)
                except psycopg.OperationalError as error:
                    if error.sqlstate not in (None, "57P01", "57P02", "57P03"):
                        raise
                    time.sleep(0.02)
        except Exception as failure:
            self.stress.faults.append(f"a worker failed: {failure!r}")
            raise

    def act(self, conn, chance):
        self.pause()
        acts, weights = [self.finish, self.claim, self.beat], [8, 6, 2]
        if not self.peaceful:
            acts, weights = [*acts, self.add, self.several, self.stop, self.close], [*weights, 3, 3, 0.15, 0.1]
        try:
            chance.choices([*acts, self.requeue], [*weights, 1])[0](conn, chance)
        except psycopg.Error as error:
            if error.sqlstate not in REFUSALS:
                raise

    def begin(self, conn, chance):
        return Act(self, conn, chance, self.peaceful)

    def forget(self, items):
        for item in items:
            if item in self.held:
                self.held.remove(item)

    def beat(self, conn, chance):
        asked_at = time.time()
        answer = call(conn, "session_heartbeat", self.session.id)
        self.session.heard(asked_at, answer.alive)
        if not answer.alive:
            return
        if not self.joined:
            call(conn, "group_join", "g", self.session.id)
            self.joined = True
        for row in rows(conn, "group_assignment", "g", self.session.id):
            if row.state == "revoking":
                call(conn, "group_release", "g", row.partition, row.fence)
        if chance.random() < 0.3:
            call(conn, "session_wait", self.session.id, answer.revision, "20 ms")

    def stop(self, conn, chance):
        """Stops the process until its session has ended, or nearly. Then it goes on with its items as a zombie."""
        self.stopped_until = time.time() + self.ttl * chance.uniform(0.7, 1.5)

    def close(self, conn, chance):
        """Ends the session, in a transaction that may still fail. The process goes on as a zombie until it is replaced."""
        began, fails = time.time(), chance.random() < 0.5
        conn.execute("BEGIN")
        try:
            call(conn, "session_close", self.session.id)
            time.sleep(chance.random() * 0.05)
        except psycopg.Error:
            fails = True
            raise
        finally:
            if not fails:
                self.session.ending_from = min(self.session.ending_from, began)
            if not conn.closed:
                conn.execute("ROLLBACK" if fails else "COMMIT")
        if not fails:
            self.session.ended_by = min(self.session.ended_by, time.time())

    def add(self, conn, chance):
        queue = chance.choice(list(QUEUES))
        if self.stress.items[queue] < MOST:
            with self.begin(conn, chance) as act:
                self.add_in(act, queue)

    def add_in(self, act, queue):
        chance = act.chance
        count, due = chance.randint(1, 4), None
        if chance.random() < 0.3:
            due = time.time() + chance.uniform(-0.2, 0.8)
        numbers = [next(self.stress.numbers) for _ in range(count)]
        keys = [None if chance.random() < 0.2 else f"key {chance.randrange(KEYS)}" for _ in numbers]
        run_at = due and datetime.fromtimestamp(due, UTC)
        began = time.time()
        if count == 1:
            ids = [call(act.conn, "item_add", queue, Jsonb(numbers[0]), keys[0], run_at)]
        else:
            ids = call(act.conn, "item_add_many", queue, [Jsonb(number) for number in numbers], keys, run_at)
        for id, key, number in zip(ids, keys, numbers, strict=True):
            act.note("add", queue, id, began, key=key, number=number, due=due)
        self.stress.items[queue] += count

    def claim(self, conn, chance):
        if not self.peaceful or len(self.held) < 20:  # `held` must not drop any
            with self.begin(conn, chance) as act:
                self.claim_in(act)

    def claim_in(self, act):
        queue, began = act.chance.choice(list(QUEUES)), time.time()
        claimed = rows(act.conn, "item_claim", queue, self.session.id, act.chance.choice([1, 2, 3, 10]))
        for item in claimed:
            told = {"key": item.key, "number": item.payload, "fence": item.fence, "attempt": item.attempt}
            act.note("claim", queue, item.id, began, session=self.session.id, **told)
        items = [Held(queue, item.id, item.key, item.fence, item.attempt, self.session) for item in claimed]
        act.gained += items
        return items

    def choose(self, chance):
        """Returns items of one claim: mostly of a new claim, now and then of one that may be lost."""
        held = list(self.held)
        if self.peaceful:  # another thread may be finishing them, so an error must concern one item
            return [chance.choice(held)] if held else []
        if not held:
            return []
        first = held[-1] if chance.random() < 0.7 else chance.choice(held)
        return [item for item in held if item.fence == first.fence and chance.random() < 0.7] or [first]

    def finish(self, conn, chance):
        if not (items := self.choose(chance)):
            return
        try:
            with self.begin(conn, chance) as act:
                self.finish_in(act, items)
        except psycopg.Error as error:
            if error.sqlstate == "LF001" and len(items) == 1:
                self.forget(items)
            raise

    def finish_in(self, act, items):
        """Ends the attempts of these items, in one of three ways."""
        chance = act.chance
        what = "done" if self.peaceful else chance.choices(["done", "fail", "unclaim"], [6, 3, 1])[0]
        began = time.time()
        if what == "fail":
            item, items = items[0], items[:1]
            wait = retry_in = chance.choice([None, 0.0, 0.2])
            if retry_in is None:
                wait = BACKOFF * 2 ** (item.attempt - 1)
            again = call(act.conn, "item_fail", item.id, item.fence, "failed", None if retry_in is None else f"{retry_in} s")
            act.note("fail" if again else "dead", item.queue, item.id, began, fence=item.fence, due=began + wait)
        else:
            count = call(act.conn, f"item_{what}", [item.id for item in items], items[0].fence)
            assert count == len(items), (what, count, items)
            for item in items:
                act.note(what, item.queue, item.id, began, fence=item.fence)
                self.stress.items[item.queue] -= what == "done"
        act.lost += items

    def several(self, conn, chance):
        """Several acts in one transaction, some of them rolled back to a savepoint."""
        held = self.choose(chance)
        with self.begin(conn, chance) as act:
            for _ in range(chance.randint(1, 4)):
                undone, gained, lost = chance.random() < 0.4, list(act.gained), list(act.lost)
                conn.execute("SAVEPOINT s")
                left = [item for item in [*held, *act.gained] if item not in act.lost]
                if left and chance.random() < 0.6:
                    fence = chance.choice(left).fence
                    self.finish_in(act, [item for item in left if item.fence == fence])
                elif chance.random() < 0.3:
                    self.add_in(act, chance.choice(list(QUEUES)))
                else:
                    self.claim_in(act)
                self.pause()
                if undone:
                    conn.execute("ROLLBACK TO s")
                    act.gained, act.lost = gained, lost
                conn.execute("RELEASE s")

    def requeue(self, conn, chance):
        dead = conn.execute("SELECT id, queue FROM eskit_lease.dead_items ORDER BY random() LIMIT 1").fetchone()
        if dead and (self.peaceful or chance.random() < 0.3):
            with self.begin(conn, chance) as act:
                began = time.time()
                call(conn, "item_requeue", dead[0])
                act.note("requeue", dead[1], dead[0], began)

    def end(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join()
