"""Writes payments of random accounts, a few in each transaction. Arguments: its name, payments per second. Ends on SIGTERM.

The account decides the partition, and the partition's row in payment_heads numbers its payments. That row is locked
until the commit, so payment 8 never becomes visible before payment 7; other partitions do not wait.
"""

import random
import sys
import time

import psycopg
from session import stop_on_sigterm, stopping

NAME, RATE = sys.argv[1], float(sys.argv[2])
ACCOUNTS = [f"account-{number}" for number in range(300)]
PARTITIONS = 64

APPEND = """WITH head AS (UPDATE payment_heads SET position = position + 1 WHERE partition = %s RETURNING partition, position)
            INSERT INTO payments SELECT partition, position, %s, %s FROM head RETURNING partition, position"""

stop_on_sigterm()
written, started = 0, time.monotonic()
with psycopg.connect(autocommit=True, application_name=NAME, prepare_threshold=None) as db:
    place = "SELECT account, eskit_lease.partition_for(account, %s) FROM unnest(%s::text[]) AS a (account)"
    partition_of = dict(db.execute(place, (PARTITIONS, ACCOUNTS)).fetchall())
    while not stopping.is_set():
        accounts = random.choices(ACCOUNTS, k=random.randint(1, 6))
        with db.transaction():
            for account in sorted(accounts, key=partition_of.get):  # in the same order in all writers, which otherwise could deadlock
                head = db.execute(APPEND, (partition_of[account], account, random.randint(100, 99_999))).fetchone()
                db.execute("SELECT eskit_lease.cursor_report_head('payments', %s, %s)", head)
            if random.random() < 0.02:  # a rollback leaves no gap: the number goes to the next payment
                raise psycopg.Rollback
        written += len(accounts)
        ahead = started + written / RATE - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)
