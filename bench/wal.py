"""The writes of operations: bytes of WAL, transaction ids and multixact ids of one call, compared with the same work by
hand. Measured on one connection with full_page_writes off, as the checkpoint before, not the call, causes a page image;
and once with full_page_writes on, right after a checkpoint."""

import statistics
import time

from groups import quiet
from harness import CLIENTS, SECONDS, connect, number, one, pgbench
from operations import PAYLOAD, Operations

CALLS = number("BENCH_WAL_CALLS", 1_000)
ROUNDS = 3
# The WAL position; the next transaction id; the next multixact id, as an age, since PostgreSQL shows no more of it.
COUNTERS = """SELECT pg_current_wal_insert_lsn() - '0/0', pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
                     (SELECT mxid_age(datminmxid) FROM pg_database WHERE datname = current_database())"""
BY_HAND = """
    CREATE TABLE hand_sessions (n integer PRIMARY KEY, beat_at timestamptz NOT NULL);
    INSERT INTO hand_sessions SELECT n, now() FROM generate_series(1, 100) AS n;
    CREATE TABLE hand_leases (resource text PRIMARY KEY, owner text, fence bigint NOT NULL, lease_until timestamptz NOT NULL);
    INSERT INTO hand_leases SELECT 'topic-' || n, 'me', n, now() + interval '1 h' FROM generate_series(1, 1000) AS n;
    CREATE TABLE hand_cursors (n integer PRIMARY KEY, position bigint NOT NULL, committed_at timestamptz NOT NULL);
    INSERT INTO hand_cursors VALUES (0, 0, now());
    CREATE TABLE hand_items (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload jsonb NOT NULL, claimed_by text, claimed_at timestamptz);
"""
# A living holder keeps its lease. So a refusal by hand is an upsert that changes nothing and locks the row.
UPSERT = """INSERT INTO hand_leases VALUES (%s, %s, 1, clock_timestamp() + interval '10 s') ON CONFLICT (resource)
            DO UPDATE SET owner = excluded.owner, fence = hand_leases.fence + 1, lease_until = excluded.lease_until
            WHERE hand_leases.lease_until < clock_timestamp() RETURNING fence"""


class ByHand:
    """The SQL that people write instead, on the same connection."""

    def __init__(self, operations):
        self.run, self.names = operations.run, operations.names
        operations.db.execute(BY_HAND)

    def heartbeat(self, _):
        return lambda _: self.run("UPDATE hand_sessions SET beat_at = clock_timestamp() WHERE n = 1 RETURNING n")

    def topic(self, _):
        renew = "UPDATE hand_leases SET lease_until = clock_timestamp() + interval '10 s' WHERE resource = %s AND owner = 'me' RETURNING fence"
        return lambda i: self.run(renew, f"topic-{1 + i % 1_000}")

    def refused(self, _):
        return lambda i: self.run(UPSERT, "topic-1000", "other")

    def new_name(self, calls):
        names = self.names(calls)

        def call(i):
            fence = self.run(UPSERT, names[i], "me")[0]
            self.run("UPDATE hand_leases SET owner = NULL, lease_until = '-infinity' WHERE resource = %s AND fence = %s RETURNING fence", names[i], fence)

        return call

    def cursor(self, _):
        return lambda _: self.run("UPDATE hand_cursors SET position = position + 1, committed_at = clock_timestamp() WHERE n = 0 RETURNING n")

    def item_add(self, _):
        return lambda _: self.run("""INSERT INTO hand_items (payload) VALUES ('{"to": "bob"}') RETURNING id""")

    def item(self, calls):
        self.run("""WITH a AS (INSERT INTO hand_items (payload) SELECT '{"to": "bob"}' FROM generate_series(1, %s) RETURNING id)
                    SELECT count(*) FROM a""", calls)  # fmt: skip
        claim = """UPDATE hand_items SET claimed_by = 'me', claimed_at = clock_timestamp() WHERE id =
                   (SELECT id FROM hand_items WHERE claimed_by IS NULL ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id"""
        return lambda _: self.run("DELETE FROM hand_items WHERE id = %s RETURNING id", self.run(claim)[0])


def pairs(ours, hand):
    """Returns the operations, those to compare with, and the names of those that must write nothing."""
    named, alone = ours.all(), {}
    nothing = {"heartbeat", "session_wait, news there", "lease_acquire, refused", "lease_acquire by the holder"}
    by_hand = {
        "heartbeat": ("UPDATE of a session's row", hand.heartbeat),
        "lease_acquire by the holder": ("UPDATE of a lease's row (pgoutbox)", hand.topic),
        "lease_acquire, refused": ("refused upsert", hand.refused),
        "lease_acquire + release, new name": ("upsert + UPDATE", hand.new_name),
        "fence_check + INSERT": ("INSERT", ours.insert),
        "cursor_commit": ("UPDATE of a cursor", hand.cursor),
        "item_add": ("INSERT of an item", hand.item_add),
        "item_claim + done": ("UPDATE + DELETE of an item", hand.item),
    }
    for what in ("SELECT 1", "INSERT"):
        alone[what] = named.pop(what)
    return named, by_hand, nothing


def written(db, operation, calls):
    """Returns the bytes, transaction ids and multixact ids of one call."""
    call = operation(calls)
    # Waits for work that the operation before has left to the worker.
    quiet(db)
    before = one(db, COUNTERS)
    for i in range(calls):
        call(i)
    return [float(b - a) / calls for a, b in zip(before, one(db, COUNTERS))]


def wal(report):
    with connect() as db:
        ours = Operations(db)
        named, by_hand, nothing = pairs(ours, ByHand(ours))
        everything = named | {label: operation for label, operation in by_hand.values()}
        images = {}
        for what, operation in everything.items():
            operation(10)
            db.execute("CHECKPOINT")
            images[what] = written(db, operation, CALLS)[0]
        full_pages(db, "off")
        try:
            found = {what: [written(db, operation, CALLS) for _ in range(ROUNDS)] for what, operation in everything.items()}
        finally:
            full_pages(db, None)
    # Rare work of other processes, such as a running-xacts record every 15 s, does not change a median.
    cost = {what: [statistics.median(values) for values in zip(*rounds)] for what, rounds in found.items()}

    def shown(what):
        size, xids, _ = cost[what]
        return f"{size:,.0f} B, {xids:.0f} xids"

    for what in named:
        against = by_hand.get(what, ("",))[0]
        size, xids, multixacts = cost[what]
        ok = size == xids == multixacts == 0 if what in nothing else None
        report.add(what, f"{shown(what)} ({images[what]:,.0f} B with images)", f"{against} {shown(against)}" if against else "",
                   f"{size / cost[against][0]:.2f}" if against else "", "0" if what in nothing else "", ok)  # fmt: skip
    data = {what: [round(values[0]) for values in found[what]] for what in everything}
    report.chart("wal", "bars", "WAL of one call, without full page images", "", "bytes", data)
    shared_fence(report)


def full_pages(db, value):
    db.execute("ALTER SYSTEM " + (f"SET full_page_writes = {value}" if value else "RESET full_page_writes"))
    db.execute("SELECT pg_reload_conf()")
    # The checkpointer applies the setting, and writes WAL about it.
    db.execute("CHECKPOINT")
    time.sleep(0.5)


FENCED = """BEGIN;
SELECT eskit_lease.fence_check('bench/shared', :fence);
INSERT INTO work (client, payload) VALUES (:client_id, '{payload}');
COMMIT;
"""
LOCKED = FENCED.replace("SELECT eskit_lease.fence_check('bench/shared', :fence);", "SELECT FROM hand_leases WHERE resource = 'topic-1' AND fence = :fence FOR SHARE;")


def shared_fence(report):
    """Many clients check one fence at once. If all locked its row instead, the row would need a multixact."""
    with connect() as db:
        fence = one(db, "SELECT l.fence FROM clients AS c, eskit_lease.lease_acquire('bench/shared', c.session) AS l WHERE c.n = 0")
        used = {}
        for script, text, value in (("shared_fence", FENCED, fence), ("shared_lock", LOCKED, 1)):
            before = one(db, COUNTERS)[2]
            tps = pgbench(script, text=text.format(payload=PAYLOAD), fence=value)
            used[script] = (one(db, COUNTERS)[2] - before, tps * SECONDS)
    (ours, calls), (theirs, locked) = used.values()
    report.add(f"multixacts, {CLIENTS} clients check one fence", f"{ours:,} in {calls:,.0f} transactions",
               f"SELECT .. FOR SHARE {theirs:,} in {locked:,.0f}", "", "0", ours == 0)  # fmt: skip
