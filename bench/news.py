"""Readers of an outbox that session_watch wakes: how long after the call of an INSERT a reader has the row, against
polling and LISTEN/NOTIFY; how long after the end of an older transaction that held it back; and what a commit pays for
the watches. The readers are threads of this program; each has a table of its own, a connection, and reads up to
position_horizon."""

import queue
import random
import statistics
import threading
import time

from crowd import BATCH, enlist
from groups import Processor
from handover import told
from harness import CLIENTS, REPEAT, ROUNDS, SECONDS, connect, interleave, number, one, percentile, pgbench

WATCHERS = number("BENCH_WATCHERS", 10_000)
TIMES = 2_000  # transactions of one measurement in processor time
PAYLOAD = "what a projection reads of one event"
TABLE = """CREATE TABLE {} (position bigint PRIMARY KEY DEFAULT eskit_lease.position_next(), payload text NOT NULL DEFAULT '{}',
                            added_at timestamptz NOT NULL DEFAULT clock_timestamp())"""
READ = """SELECT position, extract(epoch FROM clock_timestamp() - added_at)::float8 * 1e3 FROM {}
          WHERE position > %s AND position < eskit_lease.position_horizon() ORDER BY position"""


class Reader(threading.Thread):
    """Reads its table after each wake-up, and notes when it has had rows."""

    insert = "INSERT INTO {} (payload) VALUES (%s)"

    def __init__(self, table):
        super().__init__(daemon=True)
        self.db, self.table, self.last, self.had = connect(), table, 0, queue.SimpleQueue()
        self.ended, self.late, self.reads = False, [], 0
        self.db.execute(TABLE.format(table, PAYLOAD))
        self.begin()
        self.start()

    def begin(self):
        pass

    def run(self):
        while not self.ended:
            rows = self.db.execute(READ.format(self.table), (self.last,), prepare=True).fetchall()
            self.reads += 1
            if rows:
                self.had.put(time.perf_counter())
                self.last = rows[-1][0]
                self.late += [late for _, late in rows]
            self.wait()

    def add(self, db):
        """Adds a row. Returns the milliseconds from the call until the reader has the row."""
        start = time.perf_counter()
        db.execute(self.insert.format(self.table), (PAYLOAD,), prepare=True)
        return (self.had.get(timeout=60) - start) * 1e3

    def end(self, db):
        self.ended = True
        db.execute(self.insert.format(self.table), (PAYLOAD,))
        self.join()
        self.db.close()


class Watching(Reader):
    def begin(self):
        self.session = one(self.db, "SELECT session FROM eskit_lease.session_open(%s, '1 h')", self.table)
        self.revision = one(self.db, "SELECT revision FROM eskit_lease.session_watch(%s, %s)", self.session, self.table)

    def wait(self):
        wait = "SELECT revision FROM eskit_lease.session_wait(%s, %s, '1 min')"
        self.revision = self.db.execute(wait, (self.session, self.revision), prepare=True).fetchone()[0]


class Listening(Reader):
    insert = "WITH added AS (INSERT INTO {0} (payload) VALUES (%s) RETURNING 1) SELECT pg_notify('{0}', '') FROM added"

    def begin(self):
        self.db.execute(f"LISTEN {self.table}")

    def wait(self):
        list(self.db.notifies(stop_after=1))


class Polling(Reader):
    def wait(self):
        time.sleep(int(self.table.rsplit("_", 1)[1]) / 1e3)


def news(report):
    with connect() as db:
        latency(report, db)
        loaded(report, db)
        writer(report, db)


def latency(report, db):
    readers = {
        "session_wait": Watching("news_watched"),
        "LISTEN, NOTIFY": Listening("news_notified"),
        "polling each 50 ms": Polling("news_polled_50"),
        "polling each 100 ms": Polling("news_polled_100"),
    }
    values = {what: [] for what in [*readers, "held back"]}
    with connect() as older:
        for turn in range(ROUNDS + 10):
            for what, reader in readers.items():
                time.sleep(random.uniform(0, 0.1))  # so that a row comes at any moment between two polls
                took = reader.add(db)
                if turn >= 10:
                    values[what].append(took)
            values["held back"].append(held_back(db, older, readers["session_wait"]))
    for reader in readers.values():
        reader.end(db)
    ours = values["session_wait"]
    p50 = percentile(ours, 50)
    report.add("INSERT until a reader with session_watch has the row", told(ours), "", "", "p50 < 5 ms", p50 < 5)
    for what in list(readers)[1:]:
        report.add("  the same (information)", told(ours), f"{what} {told(values[what])}", f"p50/p50 {p50 / percentile(values[what], 50):.2f}")
    held = values["held back"]
    report.add("end of an older transaction until it has the row", told(held), "", "", "p99 <= 250 ms", percentile(held, 99) <= 250)


def held_back(db, older, reader):
    """Returns the milliseconds from the end of an older transaction until the reader has the row that it held back."""
    older.execute("BEGIN")
    older.execute("SELECT pg_current_xact_id()")
    db.execute(reader.insert.format(reader.table), (PAYLOAD,), prepare=True)
    time.sleep(random.uniform(0.05, 0.15))  # the reader looks seldom by now
    assert reader.had.empty()
    start = time.perf_counter()
    older.execute("COMMIT")
    return (reader.had.get(timeout=60) - start) * 1e3


def loaded(report, db):
    """The same while many clients write, and transactions overlap without end."""
    for reader in Watching("news_loaded"), Polling("news_loaded_50"):
        before, began = reader.reads, time.monotonic()
        tps = pgbench("news_loaded", text=f"INSERT INTO {reader.table} (payload) VALUES ('{PAYLOAD}');\n")
        reads = (reader.reads - before) / (time.monotonic() - began)
        reader.end(db)
        what = "a row's age when it is read" if isinstance(reader, Watching) else "  polling each 50 ms"
        report.add(f"{what}, {CLIENTS} clients write (information)", told(reader.late), f"{tps:,.0f} rows/s, {reads:.0f} reads/s")


def writer(report, db):
    """What an INSERT and its commit pay: as 16 clients see it, with the disk, and in processor time of one."""
    others = [f"news_other_{number}" for number in range(10)]
    for table in ["news_written", *others]:
        db.execute(TABLE.format(table, PAYLOAD))
    db.execute("CREATE SEQUENCE news_numbers")
    db.execute(TABLE.format("news_numbered", PAYLOAD).replace("eskit_lease.position_next()", "nextval('news_numbers')"))
    for low in range(1, WATCHERS + 1, BATCH):
        enlist(db, "news_sessions", "watcher-", low, min(low + BATCH - 1, WATCHERS), 3_600)
    states = {
        "by nextval": ("news_numbered", 0, []),
        "nobody watches": ("news_written", 0, []),
        "a session watches": ("news_written", 1, ["news_written"]),
        f"{WATCHERS:,} watch another table": ("news_written", WATCHERS, others[:1]),
        f"{WATCHERS:,} watch {len(others)} other tables": ("news_written", WATCHERS, others),
        f"{WATCHERS:,} watch": ("news_written", WATCHERS, ["news_written"]),
    }
    set_all = """SELECT count(w.alive) FROM news_sessions AS s,
                 eskit_lease.session_watch(s.session, CASE WHEN s.n <= %s THEN (%s::regclass[])[1 + s.n %% %s] END) AS w"""

    def watch(many, tables):
        assert one(db, set_all, many, tables, len(tables) or 1) == WATCHERS

    def rate(state, seconds=SECONDS):
        table, many, watched = states[state]
        watch(many, watched)
        return pgbench(table, seconds=seconds, text=f"INSERT INTO {table} (payload) VALUES ('{PAYLOAD}');\n")

    # Such small differences need many short rounds to stand out from the machine's noise.
    close = interleave({state: lambda state=state: rate(state, 1) for state in list(states)[:3]}, 6 * REPEAT)
    base = close["nobody watches"]
    report.ratio("INSERT by position_next, nobody watches", base, "by nextval", close["by nextval"], at_least=0.9)
    report.ratio("  a session watches", close["a session watches"], "nobody watches", base, at_least=0.95)
    many = ["nobody watches", *list(states)[3:]]
    values = interleave({state: lambda state=state: rate(state) for state in many})
    for state in many[1:]:
        report.ratio(f"  {state} (information)", values[state], "nobody watches", values["nobody watches"])

    with connect() as alone:
        alone.execute("SET synchronous_commit = off")
        cpu = Processor(alone)
        for table in "news_numbered", "news_written":
            alone.execute(f"""CREATE PROCEDURE pg_temp.{table}(times bigint) LANGUAGE plpgsql AS $$BEGIN
                FOR n IN 1..times LOOP INSERT INTO {table} (payload) VALUES ('{PAYLOAD}'); COMMIT; END LOOP; END$$""")

        def spent(state):
            table, many, watched = states[state]
            watch(many, watched)
            before = cpu.milliseconds()
            alone.execute(f"CALL pg_temp.{table}(%s)", (TIMES,))
            return (cpu.milliseconds() - before) / TIMES * 1e3

        values = interleave({state: lambda state=state: spent(state) for state in states}, 3 * REPEAT)
    for state, against in zip(list(states)[1:], ["by nextval", *["nobody watches"] * 4]):
        report.ratio(f"  processor time, {state} (information)", values[state], against, values[against], "µs")
    each = statistics.median(values[f"{WATCHERS:,} watch"]) - statistics.median(values["nobody watches"])
    report.add("  a watch more (information)", f"{each / WATCHERS * 1e3:.0f} ns")
    watch(0, [])
