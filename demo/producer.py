"""Writes order events, a few in each transaction, at the pace of a busy shop. On SIGTERM it stops as soon as it has written enough.

Why a lock: an identity column numbers events when they are inserted, but they become visible when they are committed. With two
writers, event 8 may be visible while event 7 is not; a consumer that reads 8 and notes "8 is done" would never see 7. Writers
that take this lock before they draw numbers commit in the order of their numbers. A rollback leaves a gap, which is harmless:
nothing ever comes to fill it.
"""

import random
import signal
import sys
import time

import psycopg

EVENTS_PER_SECOND = 2_000
LOCK = "SELECT pg_advisory_xact_lock(eskit_lease.advisory_lock_id('append:orders'))"
APPEND = "INSERT INTO order_events (customer, cents) SELECT * FROM unnest(%s::int[], %s::int[])"

enough = int(sys.argv[1])
stopping = False


def stop(*_):
    global stopping
    stopping = True


signal.signal(signal.SIGTERM, stop)
written, started = 0, time.monotonic()
with psycopg.connect(autocommit=True, application_name="producer") as db:
    while not stopping or written < enough:
        count = random.randint(1, 20)
        with db.transaction():
            db.execute(LOCK)
            db.execute(APPEND, ([random.randint(1, 300) for _ in range(count)], [random.randint(100, 99_999) for _ in range(count)]))
        written += count
        ahead = started + written / EVENTS_PER_SECOND - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)
