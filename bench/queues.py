"""The queues that work items are compared with: each can be filled, and pgbench claims and finishes its items. A peer
that is not available on this machine raises Missing."""

import json
import re
import subprocess

from harness import HERE, ROOT, SECONDS, one, pgbench
from services import Missing, peer


class Queue:
    """Shared by all queues. A run that finds nothing more to claim fails: then PER_SECOND is too small."""

    # Items by batch size: more than any of these queues finishes in a second.
    PER_SECOND = {1: 25_000, 100: 300_000}
    count: str
    tables: str
    # Items that one statement adds.
    at_once = 50_000

    def fill(self, db, items):
        missing = items - one(db, self.count)
        self.add_all(db, missing)
        if missing > 0:
            self.analyze(db)

    def analyze(self, db):
        """Tells the planner what autovacuum would tell it a minute later."""
        db.execute(f"ANALYZE {self.tables}")

    def add_all(self, db, items):
        for done in range(0, items, self.at_once):
            self.add(db, min(items - done, self.at_once))

    def run(self, script, batch, **options):
        return pgbench(script, batch=batch, **options)

    def measure(self, db, script, batch):
        """Returns the items per second."""
        self.fill(db, self.PER_SECOND[batch] * SECONDS)
        return batch * self.run(script, batch)

    def churn(self, db, items, batch=1_000):
        """Adds so many items, and finishes as many."""
        self.add_all(db, items)
        self.run(self.script, batch, clients=1, times=items // batch)


class Ours(Queue):
    script = "items"
    tables = "eskit_lease._items"
    count = f"SELECT count(*) FROM {tables}"

    def add(self, db, items):
        one(db, "SELECT eskit_lease.item_add_many('bench', array_agg(to_jsonb(n))) FROM generate_series(1, %s) AS n", items)


class Plain(Queue):
    script = "items_by_hand"
    tables = "plain_items"
    count = f"SELECT count(*) FROM {tables}"

    def add(self, db, items):
        db.execute("INSERT INTO plain_items (payload) SELECT to_jsonb(n) FROM generate_series(1, %s) AS n", (items,))


class GraphileWorker(Queue):
    """The statements by which graphile-worker's own worker takes and completes jobs: one job at a time as by default,
    or as many as its local queue holds and its batched completion takes."""

    script = "graphile_worker"
    tables = "graphile_worker._private_jobs"
    count = f"SELECT count(*) FROM {tables}"

    def __init__(self, db):
        peer("graphile-worker")
        sizes = [str(size) for size in (1, 100, 1_000)]
        command = ["node", HERE / "graphile_worker.js", ROOT / "target" / "peers", *sizes]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise Missing(done.stderr.strip())
        answer = json.loads(done.stdout)
        self.name = f"graphile-worker {answer['version']}"
        self.statements = {int(size): statements for size, statements in answer["statements"].items()}

    def add(self, db, items):
        spec = "('bench', to_json(n), NULL, NULL, NULL, NULL, NULL, NULL)::graphile_worker.job_spec"
        jobs = f"graphile_worker.add_jobs((SELECT array_agg({spec}) FROM generate_series(1, %s) AS n))"
        one(db, f"SELECT count(*) FROM {jobs}", items)

    def run(self, script, batch, **options):
        """Runs the worker's own statements, except that the rows of the UPDATE are aggregated into one, as pgbench
        accepts only one row. A worker gets them all."""
        get, complete = (self.statements[batch][name] for name in ("get", "complete"))
        head, update = re.fullmatch(r"(with .*?)\s+(update [^,]*? as jobs\s+set\s+attempts = .* returning) \*", get, re.S).groups()
        get = f"{head},\nclaimed as ({update} jobs.*)\nselect array_agg(id) as ids, min(id) as id, count(payload) from claimed"
        get = get.replace("$1", ":client_id").replace("$2", ":tasks")
        complete = complete.replace("$1::bigint[]", ":ids::bigint[]").replace("$1::bigint", ":id::bigint")
        tasks = "{" + ",".join(map(str, self.statements[batch]["tasks"])) + "}"
        return pgbench(f"{script}_{batch}", text=f"{get} \\gset\n{complete};\n", tasks=tasks, **options)


class Pgq(Queue):
    """A log that a consumer reads from tick to tick. Debian has no pgq_coop, so a queue has one consumer here. A batch
    is the events between two ticks. PgQ's own ticker makes a tick after each batch of events, before the measurement.
    Small ticks are not its strength, as its default is 500 events: each finished tick leaves a version of the
    consumer's only row, and an old snapshot keeps them all."""

    script = "pgq"
    tables = "pgq.subscription, pgq.tick, pgq.event_1_0"
    PER_SECOND = {1: 6_000, 100: 300_000}

    def __init__(self, db):
        peer("pgq")
        db.execute("CREATE EXTENSION pgq")
        db.execute("SELECT pgq.create_queue('bench'), pgq.register_consumer('bench', 'bench')")
        # The ticker makes a tick at each call if there are new events.
        db.execute("SELECT pgq.set_queue_config('bench', 'ticker_max_lag', '0')")
        # The first tick counts one event too many, before any was added.
        self.churn(db, 1, batch=1)
        version = one(db, "SELECT extversion FROM pg_extension WHERE extname = 'pgq'")
        self.name = f"pgq {version}, 1 consumer"

    def ahead(self, db):
        """Returns the ticks and events that the consumer has not finished yet."""
        return one(db, "SELECT count(*) - 1, max(t.tick_event_seq) - min(t.tick_event_seq) FROM pgq.subscription AS s JOIN pgq.tick AS t "
                       "ON t.tick_queue = s.sub_queue AND t.tick_id >= s.sub_last_tick")  # fmt: skip

    def ticks(self, ticks, batch):
        if ticks > 0:
            pgbench("pgq_add", batch=batch, clients=1, times=ticks)

    def fill(self, db, items, batch):
        ticks, events = self.ahead(db)
        if events != ticks * batch:
            # The remaining ticks have another size.
            self.run(self.script, batch, times=ticks)
            ticks = 0
        self.ticks(items // batch - ticks, batch)
        self.analyze(db)
        ticks, events = self.ahead(db)
        assert events == ticks * batch, (events, ticks)

    def run(self, script, batch, **options):
        return super().run(script, batch, **{**options, "clients": 1})

    def measure(self, db, script, batch):
        self.fill(db, self.PER_SECOND[batch] * SECONDS, batch)
        return batch * self.run(script, batch)

    def churn(self, db, items, batch=1_000):
        ticks, _ = self.ahead(db)
        self.ticks(items // batch, batch)
        self.run(self.script, batch, times=ticks + items // batch)
