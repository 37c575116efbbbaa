"""Many sessions with ten leases each: the storm kills them, and other calls must be as fast as without them."""

from harness import SESSIONS, connect, interleave, one, pgbench

LEASES = 10  # of each session
BATCH = 500  # sessions opened in one transaction: each holds a lock to its end


def enlist(db, table, consumer, low, high, ttl):
    db.execute(f"CREATE TABLE IF NOT EXISTS {table} (n integer PRIMARY KEY, session uuid NOT NULL)")
    db.execute(
        f"""INSERT INTO {table} SELECT n, o.session FROM generate_series(%s::integer, %s) AS n,
            eskit_lease.session_open(%s || n, make_interval(secs => %s)) AS o""", (low, high, consumer, ttl))  # fmt: skip


def gather(db, table, prefix, ttl, between=lambda: None):
    """Opens the sessions and acquires their leases, PREFIX/SESSION/LEASE."""
    granted = 0
    for low in range(1, SESSIONS + 1, BATCH):
        high = min(low + BATCH - 1, SESSIONS)
        enlist(db, table, f"{table}-", low, high, ttl)
        granted += one(
            db,
            f"""SELECT count(*) FILTER (WHERE l.granted) FROM {table} AS s CROSS JOIN LATERAL eskit_lease.lease_acquire_many(
                ARRAY(SELECT format('%%s/%%s/%%s', %s::text, s.n, k) FROM generate_series(1, %s) AS k), s.session) AS l
                WHERE s.n BETWEEN %s AND %s""", prefix, LEASES, low, high)  # fmt: skip
        between()
    assert granted == SESSIONS * LEASES, granted


def crowd(report):
    """A call that is fast in an empty database is as fast in a crowd."""
    with connect() as db:
        gather(db, "crowd_sessions", "crowd", 3_600)
        db.execute(
            """INSERT INTO plain_leases (resource, slot, session, fence, timeline, granted_at)
               SELECT resource, slot, session, nextval('plain_fences'), timeline, granted_at FROM eskit_lease._leases
               WHERE session IS NOT NULL""")  # fmt: skip
        values = interleave({
            "select_1": lambda: pgbench("select_1"),
            "heartbeat": lambda: pgbench("heartbeat"),
            "grant": lambda: pgbench("grant"),
            "by_hand": lambda: pgbench("grant_by_hand"),
        })  # fmt: skip
        report.add("in a crowd:", f"{SESSIONS:,} sessions that hold {SESSIONS * LEASES:,} leases")
        report.ratio("  session_heartbeat", values["heartbeat"], "SELECT 1", values["select_1"], at_least=0.7)
        report.ratio("  lease_acquire of a new name + lease_release", values["grant"], "INSERT + UPDATE", values["by_hand"], at_least=0.6)
