"""Work items: claimed and done, against the plainest table with FOR UPDATE SKIP LOCKED; idle, and while an old snapshot is open in
which everything that has been done since is still to be seen."""

from harness import REPEAT, SECONDS, connect, interleave, number, one, pgbench

# Items that were done since the old snapshot was taken.
CHURN = number("BENCH_CHURN", 200_000)
# More than anybody does in one measurement.
PER_SECOND = {1: 8_000, 100: 150_000}


def fill(db, count):
    """Both queues have so many items, and no more."""
    for queue, add in [
        ("SELECT count(*) FROM plain_items", "INSERT INTO plain_items (payload) SELECT to_jsonb(n) FROM generate_series(1, %s) AS n"),
        ("SELECT count(*) FROM eskit_lease._items",
         "SELECT count(eskit_lease.item_add_many('bench', a.payloads)) FROM (SELECT array_agg(to_jsonb(n)) AS payloads FROM generate_series(1, %s) AS n GROUP BY n / 50000) AS a"),
    ]:  # fmt: skip
        missing = count - one(db, queue)
        if missing > 0:
            db.execute(add, (missing,))


def items(report):
    with connect() as db:

        def measure(script, batch):
            fill(db, PER_SECOND[batch] * SECONDS)
            return batch * pgbench(script, batch=batch)

        def compare(where, repeat=REPEAT, **bound):
            for batch in (1, 100):
                scripts = ("items", "items_by_hand", "items_at_once", "items_by_hand_at_once")
                values = interleave({script: lambda script=script: measure(script, batch) for script in scripts}, repeat)
                what = f"items claimed, then done, {batch} at a time, {where}"
                report.ratio(what, values["items"], "UPDATE, DELETE", values["items_by_hand"], **bound)
                what = f"items claimed and done at once, {batch} at a time, {where}"
                report.ratio(what, values["items_at_once"], "SELECT, DELETE", values["items_by_hand_at_once"], **bound)

        compare("idle", at_least=1.0)
        with connect() as old, old.transaction():
            old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            old.execute("SELECT 1 FROM plain_items LIMIT 1")
            fill(db, CHURN)
            for script in ("items_at_once", "items_by_hand_at_once"):
                pgbench(script, batch=1000, seconds=1)
            db.execute("DELETE FROM plain_items WHERE id IN (SELECT id FROM plain_items ORDER BY id LIMIT %s)", (CHURN,))
            one(db, "SELECT count(*) FROM clients AS c, generate_series(1, %s), "
                    "LATERAL (SELECT eskit_lease.item_done(array_agg(i.id), min(i.fence)) FROM eskit_lease.item_claim('bench', c.session, 1000) AS i) AS d "
                    "WHERE c.n = 0", CHURN // 1000)  # fmt: skip
            compare("old snapshot", repeat=min(REPEAT, 3), at_least=1.0)
