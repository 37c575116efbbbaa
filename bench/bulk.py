"""Calls with 100,000 names, compared with one statement that writes the same rows."""

import time

from harness import BULK, REPEAT, connect, interleave, one
from rates import heartbeats_of

OPEN = "SELECT session FROM eskit_lease.session_open('bulk', '1 h')"
# Each call takes seconds.
ROUNDS = min(REPEAT, 5)
NAMES = "(SELECT names FROM bulk_names WHERE n = %s)"


def bulk(report):
    with connect() as db:
        few, many = one(db, OPEN), one(db, OPEN)
        one(db, "SELECT granted FROM eskit_lease.lease_acquire('bulk:one', %s)", few)
        db.execute("CREATE TABLE bulk_names (n integer PRIMARY KEY, names text[] NOT NULL)")
        current = 0

        def timed(sql, *values):
            start = time.monotonic()
            assert one(db, sql, *values) == BULK
            return time.monotonic() - start

        def timed_by_hand(sql, *values):
            start = time.monotonic()
            assert db.execute(sql, values).rowcount == BULK
            return time.monotonic() - start

        def acquire():
            nonlocal current
            current += 1
            db.execute(
                "INSERT INTO bulk_names SELECT %s, array_agg(format('bulk:%%s:%%s', %s::integer, i)) FROM generate_series(1, %s) AS i",
                (current, current, BULK),
            )
            return timed(f"SELECT count(*) FILTER (WHERE granted) FROM eskit_lease.lease_acquire_many({NAMES}, %s)", current, many)

        def insert():
            return timed_by_hand(
                f"""INSERT INTO plain_leases (resource, slot, session, fence, timeline, granted_at)
                    SELECT name, 0, %s, nextval('plain_fences'), 1, clock_timestamp() FROM unnest({NAMES}) AS name""",
                many, current)  # fmt: skip

        def again():
            return timed(f"SELECT count(*) FILTER (WHERE granted) FROM eskit_lease.lease_acquire_many({NAMES}, %s)", current, many)

        def release():
            if current == 1 + ROUNDS:
                # The last leases are kept for the heartbeat below.
                heartbeats_of(report, few, many, BULK)
            return timed(f"SELECT count(*) FILTER (WHERE released) FROM eskit_lease.lease_release_many({NAMES}, %s)", current, many)

        def update():
            return timed_by_hand(
                f"""UPDATE plain_leases SET session = NULL, released_at = clock_timestamp()
                    FROM unnest({NAMES}) AS name WHERE resource = name AND slot = 0""", current)  # fmt: skip

        variants = {"acquire": acquire, "insert": insert, "again": again, "release": release, "update": update}
        values = interleave(variants, ROUNDS)
        report.ratio(f"lease_acquire_many of {BULK:,} names", values["acquire"], "INSERT .. SELECT", values["insert"], "s", at_most=2)
        report.ratio("the same again by the holder (information)", values["again"], "INSERT .. SELECT", values["insert"], "s")
        report.ratio("lease_release_many of them", values["release"], "UPDATE", values["update"], "s", at_most=2)
