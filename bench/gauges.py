"""What a scrape by monitoring/queries.yaml costs, with millions of done run-once keys, items and leases; how exact the
backlog is; and what watching costs those who are watched: the index of the open keys, and the view of refusals."""

import re
import statistics
import time

from cluster import cluster
from harness import REPEAT, ROOT, interleave, number, one

KEYS = number("BENCH_GAUGES_KEYS", 10_000_000)
ITEMS = number("BENCH_GAUGES_ITEMS", 1_000_000)
LEASES = number("BENCH_GAUGES_LEASES", 1_000_000)
AT_MOST = 10.0  # ms for each statement, and so for each of its gauges
# The share of the second queue: one item in so many. An estimate is from a sample of 30,000 rows, so it misses the number
# of a queue with a fifth of them by 1 %, and that of a queue with a fortieth by 4 %.
OTHER = 5
CALLS = 2_000  # of a writer, in one measurement
NOTED = 64  # the refusals of one call that the view shows (src/base/limits.rs)
REFUSED = 10_000  # refusals a second


def gauges(report):
    # The server measures what this part does, and not what autovacuum does meanwhile.
    with cluster("gauges", "autovacuum = off") as server:
        writer(report, server)
        with server.connect() as db, server.connect() as other:
            db.execute("SET jit = off")  # as the exporter's documented address does
            refusals(report, db)
            fill(db)
            other.execute("BEGIN")
            one(other, "SELECT eskit_lease.fence_check('topic/99', 99)")  # what blocks must be found among all leases
            scrape(report, db, "just loaded")
            db.execute("VACUUM ANALYZE")
            scrape(report, db, "analyzed")
            other.execute("COMMIT")
            backlog(report, db)


def fill(db):
    """Makes the rows that the verbs would make. The verbs would take an hour."""
    for queue in ("much", "less"):
        one(db, "SELECT eskit_lease.queue_create(%s)", queue)
    db.execute("""INSERT INTO eskit_lease._executions (key, state, session, consumer, role, fence, attempts, retry_in_doubt, started_at, finished_at)
                  SELECT 'payment/' || n, 'done', gen_random_uuid(), 'consumer', 'role', n, 1, false, now(), now() FROM generate_series(1, %s) AS n""", (KEYS,))  # fmt: skip
    db.execute("""INSERT INTO eskit_lease._items (queue, partition, place, id, added_at, payload)
                  SELECT q.number, 0, n, n, now(), '{"a": 1}' FROM generate_series(1, %s) AS n
                  JOIN eskit_lease._queues AS q ON q.queue = CASE n %% %s WHEN 0 THEN 'less' ELSE 'much' END""", (ITEMS, OTHER))  # fmt: skip
    session = open_session(db, "holder")
    db.execute("""INSERT INTO eskit_lease._leases (resource, slot, session, fence, timeline, granted_at)
                  SELECT 'topic/' || n, 0, %s, n, 1, now() FROM generate_series(1, %s) AS n""", (session, LEASES))  # fmt: skip
    waiter = open_session(db, "waiter")
    for n in range(1, 11):
        assert one(db, "SELECT reason FROM eskit_lease.lease_acquire(%s, %s, true)", f"topic/{n}", waiter) == "queued"


def open_session(db, consumer):
    return one(db, "SELECT session FROM eskit_lease.session_open(%s, '1 h')", consumer)


def scrape(report, db, when):
    text = (ROOT / "monitoring/queries.yaml").read_text()
    queries = re.findall(r"^(\w+):\n  query: \|\n((?:    .*\n)+)", text, re.M)
    assert len(queries) == len(re.findall(r"^\w+:", text, re.M)), "a statement of queries.yaml is not understood"
    for name, query in [*queries, ("the view queues", "SELECT * FROM eskit_lease.queues")]:
        db.execute(query).fetchall()
        took = []
        for _ in range(REPEAT):
            start = time.perf_counter()
            db.execute(query).fetchall()
            took.append((time.perf_counter() - start) * 1e3)
        middle = statistics.median(took)
        report.add(f"{name}, {when}", f"{middle:.2f} ms ({min(took):.2f}-{max(took):.2f})", f"{KEYS:,} keys, {ITEMS:,} items, {LEASES:,} leases", "",
                   f"<= {AT_MOST:.0f} ms", middle <= AT_MOST)  # fmt: skip


def backlog(report, db):
    true = {"less": ITEMS // OTHER, "much": ITEMS - ITEMS // OTHER}
    for queue, shown in db.execute("SELECT queue, items FROM eskit_lease.queues ORDER BY queue").fetchall():
        off = abs(shown - true[queue]) / true[queue]
        report.add(f"the view queues, {queue}", f"{shown:,} items", f"{true[queue]:,} in truth", f"{off:.3f}", "<= 0.05", off <= 0.05)
    shown = one(db, "SELECT held FROM eskit_lease._count_held()")
    off = abs(shown - LEASES) / LEASES
    report.add("eskit_lease_leases_held", f"{shown:,}", f"{LEASES:,} in truth", f"{off:.3f}", "<= 0.05", off <= 0.05)


# Both loops are the server's own: round trips would hide such small costs.
WRITE = """CREATE PROCEDURE pg_temp.write(writer uuid, first bigint, times bigint, INOUT us float8 DEFAULT 0) LANGUAGE plpgsql AS $$
    DECLARE had bigint; began timestamptz = clock_timestamp();
    BEGIN
        FOR n IN first..first + times - 1 LOOP
            SELECT fence INTO had FROM eskit_lease.execution_begin('payment/' || n, writer);
            COMMIT;
            ASSERT eskit_lease.execution_finish('payment/' || n, had);
            COMMIT;
        END LOOP;
        us = extract(epoch FROM clock_timestamp() - began) * 1e6 / times;
    END $$"""
ASK = """CREATE FUNCTION pg_temp.ask(asker uuid, names text[], times integer) RETURNS float8 LANGUAGE plpgsql AS $$
    DECLARE began timestamptz = clock_timestamp();
    BEGIN
        FOR n IN 1..times LOOP
            ASSERT (SELECT bool_and(reason = 'held') FROM eskit_lease.lease_acquire_many(names, asker));
        END LOOP;
        RETURN extract(epoch FROM clock_timestamp() - began) * 1e6 / times;
    END $$"""


def writer(report, server):
    """What a writer of run-once keys pays for the index of those that are not done: in one database it is, in another it
    is not. Neither transaction waits for a disk, so nothing hides the index."""

    def write(db, session):
        first = 0

        def again():
            nonlocal first
            first += CALLS
            return one(db, "CALL pg_temp.write(%s, %s, %s)", session, first, CALLS)

        return again

    for database in ("with_index", "without_index"):
        server.create(database)
    with server.connect("without_index") as db:
        db.execute("DROP INDEX eskit_lease._executions_open")
    with server.connect("with_index") as having, server.connect("without_index") as lacking:
        turns = {}
        for name, db in (("with", having), ("without", lacking)):
            db.execute(WRITE)
            turns[name] = write(db, open_session(db, "writer"))
        values = interleave(turns)
        assert one(having, "SELECT count(*) FROM eskit_lease._executions WHERE state = 'done'") == (REPEAT + 1) * CALLS
    report.ratio("a run-once key, with the index of the open ones", values["with"], "without it", values["without"], unit="µs", at_most=1.15)


def refusals(report, db):
    """What a refusal pays for its note in the view: of the refusals of one call the view has the first ones, so a call
    with twice as many names has as many refusals with a note as without one."""
    holder, asker = open_session(db, "holder of these"), open_session(db, "asker")
    # The first name pays for the call.
    names = [f"held/{n}" for n in range(2 * NOTED - 1)]
    assert one(db, "SELECT bool_and(granted) FROM eskit_lease.lease_acquire_many(%s, %s)", names, holder)
    db.execute(ASK)
    ask = lambda many: lambda: one(db, "SELECT pg_temp.ask(%s, %s, %s)", asker, names[:many], CALLS // 10)
    values = interleave({many: ask(many) for many in (1, NOTED, 2 * NOTED - 1)}, 3 * REPEAT)
    assert one(db, "SELECT count(*) FROM eskit_lease.refusals WHERE consumer = 'asker'") >= NOTED // 2
    noted = [(b - a) / (NOTED - 1) for a, b in zip(values[1], values[NOTED])]
    silent = [(c - b) / (NOTED - 1) for b, c in zip(values[NOTED], values[2 * NOTED - 1])]
    report.ratio("a refusal with its note in the view refusals", noted, "without a note", silent, unit="µs", at_most=1.5)
    share = statistics.median(a - b for a, b in zip(noted, silent)) * REFUSED / 1e6
    report.check(f"the notes of {REFUSED:,} refusals a second", f"{share:.2%} of a processor", "<= 2 %", share <= 0.02)
