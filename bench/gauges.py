"""What a scrape by monitoring/queries.yaml costs, with millions of done run-once keys, items and leases; and how exact
the backlog is."""

import re
import statistics
import time

from cluster import cluster
from harness import REPEAT, ROOT, number, one

KEYS = number("BENCH_GAUGES_KEYS", 10_000_000)
ITEMS = number("BENCH_GAUGES_ITEMS", 1_000_000)
LEASES = number("BENCH_GAUGES_LEASES", 1_000_000)
AT_MOST = 10.0  # ms for each statement, and so for each of its gauges
OTHER = 40  # the share of the second queue: one item in so many


def gauges(report):
    with cluster("gauges") as server, server.connect() as db:
        # The server measures what this part does, and not what autovacuum does meanwhile.
        db.execute("ALTER SYSTEM SET autovacuum = off")
        db.execute("SELECT pg_reload_conf()")
        fill(db)
        scrape(report, db, "just loaded")
        db.execute("VACUUM ANALYZE")
        scrape(report, db, "analyzed")
        backlog(report, db)


def fill(db):
    """Makes the rows that the verbs would make. The verbs would take an hour."""
    for queue in ("much", "less"):
        one(db, "SELECT eskit_lease.queue_create(%s)", queue)
    session = one(db, "SELECT session FROM eskit_lease.session_open('holder', '1 h')")
    db.execute("""INSERT INTO eskit_lease._executions (key, state, session, consumer, role, fence, attempts, retry_in_doubt, started_at, finished_at)
                  SELECT 'payment/' || n, 'done', gen_random_uuid(), 'consumer', 'role', n, 1, false, now(), now() FROM generate_series(1, %s) AS n""", (KEYS,))  # fmt: skip
    db.execute("""INSERT INTO eskit_lease._items (queue, partition, place, id, added_at, payload)
                  SELECT q.number, 0, n, n, now(), '{"a": 1}' FROM generate_series(1, %s) AS n
                  JOIN eskit_lease._queues AS q ON q.queue = CASE n %% %s WHEN 0 THEN 'less' ELSE 'much' END""", (ITEMS, OTHER))  # fmt: skip
    db.execute("""INSERT INTO eskit_lease._leases (resource, slot, session, fence, timeline, granted_at)
                  SELECT 'topic/' || n, 0, %s, n, 1, now() FROM generate_series(1, %s) AS n""", (session, LEASES))  # fmt: skip
    waiter = one(db, "SELECT session FROM eskit_lease.session_open('waiter', '1 h')")
    for n in range(1, 11):
        one(db, "SELECT granted FROM eskit_lease.lease_acquire(%s, %s, true)", f"topic/{n}", waiter)


def scrape(report, db, when):
    queries = re.findall(r"^(\w+):\n  query: \|\n((?:    .*\n)+)", (ROOT / "monitoring/queries.yaml").read_text(), re.M)
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
    report.add("eskit_lease_leases_held", f"{shown:,}", f"{LEASES:,} in truth", f"{abs(shown - LEASES) / LEASES:.3f}", "<= 0.05", abs(shown - LEASES) <= 0.05 * LEASES)
