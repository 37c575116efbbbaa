"""Writers of watched tables, and consumers that session_watch and session_wait wake; a seed decides what each does.

Writers insert, commit, roll back, also to savepoints, and prepare transactions. Some transactions only stay open, one of
them in another database, and hold the horizon back. Consumers read after each wake-up, and at no other time. They leave
for a while, with or without their watch, and come back in the same session or in another one. Positions are raised.

Now and then all writers stand still, with transactions open or prepared. Then each consumer that watches must read each
row below the horizon: nothing else would wake it any more, so a lost wake-up stays lost."""

import collections
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from client import Session, call, rows
from conftest import wait_until
from psycopg.pq import TransactionStatus

# How often each table is written. `never` is watched, too.
TABLES = {"much": 6, "less": 2, "never": 0}
TABLE = "CREATE TABLE {} (position bigint PRIMARY KEY DEFAULT eskit_lease.position_next(), what text NOT NULL)"
READABLE = "SELECT position FROM {} WHERE position > %s AND position < eskit_lease.position_horizon() ORDER BY position"
RAISE = "SELECT eskit_lease.position_raise(eskit_lease.position_horizon() + (1::bigint << 40))"
WRITERS, CONSUMERS = 5, 6
# Each writer may have a transaction open and one prepared; the stranger has one open.
OPEN = 2 * WRITERS + 1
TRIED = "halts with rows to read"


class Writer:
    def __init__(self, stress, number, dbname):
        self.stress, self.name, self.chance = stress, f"writer {number}", random.Random(f"{stress.seed} writer {number}")
        self.conn, self.wrote, self.prepared = stress.server.connect(dbname), set(), None

    @property
    def is_open(self):
        return self.conn.info.transaction_status == TransactionStatus.INTRANS

    def act(self):
        """Takes the next step of the schedule. No step waits for another transaction."""
        if self.is_open:
            self.chance.choices([self.insert, self.undo, self.keep, self.end], [2, 1, 1, 5])[0]()
        else:
            self.chance.choices([self.insert, self.begin, self.hold, self.resolve], [2, 4, 2, 8 if self.prepared else 0])[0]()

    def begin(self):
        self.conn.execute("BEGIN")
        self.insert()

    def hold(self):
        self.conn.execute("BEGIN")
        self.conn.execute("SELECT pg_current_xact_id()")

    def insert(self):
        table = self.chance.choices(list(TABLES), TABLES.values())[0]
        self.conn.execute(f"INSERT INTO {table} (what) VALUES (%s)", (self.name,))
        self.wrote.add(table)
        if not self.is_open:
            self.committed()

    def undo(self):
        before = set(self.wrote)
        self.conn.execute("SAVEPOINT s")
        self.insert()
        self.conn.execute("ROLLBACK TO s")
        self.wrote = before

    def keep(self):
        self.conn.execute("SAVEPOINT s")
        self.insert()
        self.conn.execute("RELEASE s")

    def end(self):
        how = self.chance.choices(["COMMIT", "ROLLBACK", "PREPARE"], [6, 2, self.stress.tells_all and not self.prepared])[0]
        if how == "PREPARE":
            self.prepared = f"{self.stress.db} {self.name}"
            how = f"PREPARE TRANSACTION '{self.prepared}'"
            # At COMMIT PREPARED nothing tells which table was written.
            self.wrote = set(TABLES) if self.wrote else set()
        elif how == "ROLLBACK":
            self.wrote.clear()
        self.conn.execute(how)
        self.committed()

    def committed(self):
        self.stress.told.extend(self.wrote)
        self.wrote.clear()

    def resolve(self):
        if self.prepared:
            self.conn.execute(f"{self.chance.choice(['COMMIT', 'COMMIT', 'ROLLBACK'])} PREPARED '{self.prepared}'")
            self.prepared = None

    def stop(self):
        if self.is_open:
            self.conn.execute("COMMIT")
            self.committed()
        self.resolve()
        self.conn.close()


class Stranger(Writer):
    """Works in another database, and only holds the horizon back."""

    def act(self):
        self.conn.execute("COMMIT") if self.is_open else self.hold()


class Consumer(threading.Thread):
    """Reads the table that it watches. The last one always watches the table that is never written."""

    def __init__(self, stress, number):
        super().__init__(daemon=True)
        self.stress, self.name, self.chance = stress, f"consumer {number}", random.Random(f"{stress.seed} consumer {number}")
        self.number, self.is_last = number, number == CONSUMERS - 1
        self.table, self.seen = None, {table: set() for table in TABLES}
        self.is_away, self.back = True, threading.Event()
        self.woken, self.watches = 0, 0

    def run(self):
        try:
            with self.stress.server.connect(self.stress.db) as self.conn:
                self.session, self.companion = self.open(), Session(self.conn, f"{self.name}'s companion", ttl="1 h")
                self.watch()
                while self.waits():
                    self.read()
                    if not self.is_last and not self.stress.is_ending and self.chance.random() < 0.25:
                        self.leave()
        except Exception as failure:
            self.stress.faults.append(f"{self.name}: {failure!r}")

    def open(self, **how):
        return Session(self.conn, self.name, ttl="1 h", **how)

    def watch(self):
        """Watches, then reads; the revision is from before both have ended."""
        tables = ["never"] if self.is_last else ["much", "much", "less"]
        self.table = self.chance.choice(tables)
        answer = call(self.conn, "session_watch", self.session.id, self.table if self.stress.watching else None)
        self.session.revision, self.is_away = answer.revision or 0, False  # none if the run has ended the session
        self.watches += 1
        self.read()

    def read(self):
        last = max(self.seen[self.table], default=0)
        self.seen[self.table].update(position for (position,) in self.conn.execute(READABLE.format(self.table), (last,)))

    def waits(self):
        """Waits until the session is woken. Returns whether it still lives."""
        while True:
            if self.number % 2:
                asked = [self.companion.id, self.session.id], [self.companion.revision, self.session.revision]
                answer = rows(self.conn, "session_wait_many", *asked, "1 min")[1]
                self.session.revision = answer.revision
            else:
                answer = self.session.wait("1 min")
            if not answer.alive or answer.reason == "changed":
                break
        self.woken += answer.alive
        time.sleep(self.chance.random() ** 4 * 0.02)
        return answer.alive

    def leave(self):
        how = self.chance.choice(["keep", "stop", "close", "take over"])
        if how == "stop":
            call(self.conn, "session_watch", self.session.id, None)
        elif how == "close":
            self.session.close()
        self.is_away = True
        self.back.wait()
        self.back.clear()
        if how == "keep":
            self.is_away = False
            return  # its wait finds what it has missed
        if how != "stop":
            self.session = self.open(takeover=how == "take over")
        self.watch()

    def call_back(self):
        self.back.set()

    def lacks(self, readable):
        return set() if self.is_away else readable[self.table] - self.seen[self.table]


class Stress:
    def __init__(self, server, db, seed, seconds, tells_all=True, watching=True, limit=20):
        """`tells_all`: whether transactions are prepared and positions raised, which all watches are told of.
        `watching`: whether consumers watch. `limit`: the seconds after which a wake-up counts as lost."""
        self.server, self.db, self.seed, self.seconds = server, db, seed, seconds
        self.tells_all, self.watching, self.limit = tells_all, watching, limit
        # The table of each commit that those who watch the table are told of.
        self.told, self.faults, self.counts, self.is_ending = [], [], collections.Counter(), False

    def run(self):
        for table in TABLES:
            self.server.query(TABLE.format(table), dbname=self.db)
        chance, until = random.Random(self.seed), time.monotonic() + self.seconds
        self.consumers = [Consumer(self, number) for number in range(CONSUMERS)]
        writers = [Writer(self, number, self.db) for number in range(WRITERS)] + [Stranger(self, WRITERS, "postgres")]
        for consumer in self.consumers:
            consumer.start()
        with self.server.connect(self.db) as self.conn, ThreadPoolExecutor(len(writers)) as pool:
            # On a slow machine it takes longer until something was tried.
            while not self.faults and (time.monotonic() < until or self.counts[TRIED] < 10 and time.monotonic() < until + 60):
                self.step(chance, writers, pool)
            for writer in writers:
                writer.stop()
            self.end()
        self.faults += too_often(self.consumers, self.told)
        print(dict(self.counts), f"{len(self.told)} told", {consumer.name: consumer.woken for consumer in self.consumers})

    def step(self, chance, writers, pool):
        acts = [pool.submit(writer.act) for writer in chance.sample(writers, chance.choice([1, 1, 2, 3]))]
        if chance.random() < 0.2:
            chance.choice([consumer for consumer in self.consumers if consumer.is_away] or self.consumers).call_back()
        for act in acts:
            act.result()
        self.counts["acts"] += len(acts)
        if self.tells_all and chance.random() < 0.005:
            self.counts["raises"] += self.conn.execute(RAISE).fetchone()[0]
            self.told.extend(TABLES)
        if chance.random() < 0.3:
            self.stand_still()

    def readable(self):
        return {table: {position for (position,) in self.conn.execute(READABLE.format(table), (0,))} for table in TABLES}

    def stand_still(self):
        readable, deadline = self.readable(), time.monotonic() + self.limit
        lacking = lambda: {consumer.name: lack for consumer in self.consumers if (lack := len(consumer.lacks(readable)))}
        self.counts["halts"] += 1
        self.counts[TRIED] += bool(lacking())
        while not self.faults and (left := lacking()):
            if time.monotonic() > deadline:
                self.faults.append(f"not woken, and rows to read: {left}; after {dict(self.counts)}")
            time.sleep(0.001)

    def end(self):
        """Lets the consumers read the rest, and ends them."""
        total = {table: {position for (position,) in self.conn.execute(f"SELECT position FROM {table}")} for table in TABLES}
        wait_until(lambda: self.readable() == total)
        self.is_ending = True
        wait_until(lambda: not [consumer.call_back() for consumer in self.consumers if consumer.is_away] or self.faults)
        self.stand_still()
        close = "SELECT eskit_lease.session_close(session) FROM eskit_lease.sessions WHERE consumer = ANY (%s)"

        def ended():
            for consumer in self.consumers:
                consumer.call_back()
            self.conn.execute(close, ([consumer.name for consumer in self.consumers],))
            return not any(consumer.is_alive() for consumer in self.consumers)

        wait_until(ended)


def too_often(consumers, told):
    """Finds consumers that were woken in vain too often. Each news may wake a consumer once, and once more as each older
    transaction ends."""
    commits = collections.Counter(told)
    for consumer in consumers:
        news = consumer.watches + (commits["never"] if consumer.is_last else commits["much"] + commits["less"])
        if consumer.woken > news * (1 + OPEN):
            yield f"{consumer.name} was woken {consumer.woken} times by {news} news"
