"""Writes order events, a few in each transaction, at the pace of a busy shop. On SIGTERM it stops as soon as it has written enough.

Several of these write at the same time, and none waits for another: a transaction that draws its positions first may
commit last. The consumers read up to eskit_lease.position_horizon(), which stays below the positions of open
transactions, so they miss nothing. A rollback leaves a gap, which is harmless, as no row ever fills it.
"""

import random
import signal
import sys
import time

import psycopg

APPEND = "INSERT INTO order_events (customer, cents) SELECT * FROM unnest(%s::int[], %s::int[])"

enough, events_per_second = map(int, sys.argv[1:])
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
            db.execute(APPEND, ([random.randint(1, 300) for _ in range(count)], [random.randint(100, 99_999) for _ in range(count)]))
            if random.random() < 0.05:  # a slow transaction: it commits after many that draw their positions later
                time.sleep(0.05)
            if random.random() < 0.02:
                raise psycopg.Rollback
            written += count
        ahead = started + written / events_per_second - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)
