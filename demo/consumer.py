"""One consumer of the stream of orders. Any number of these may run: one of them leads, and the others wait in line.

The loop of docs/consumer.md with an ordinary client, and no library of ours. It logs JSON lines.
"""

import sys
import time
from collections import Counter

import psycopg
from psycopg.rows import namedtuple_row
from session import Lost, Session, log, stop_on_sigterm, stopping

NAME = sys.argv[1]
RESOURCE, STREAM = "sub:orders", "orders"
TTL = 2.0  # seconds that the session lives after a heartbeat
BATCH = 200

READ = """SELECT position, customer, cents FROM order_events
          WHERE position > %s AND position < eskit_lease.position_horizon() ORDER BY position LIMIT %s"""
ADVANCE = "UPDATE checkpoints SET position = %s WHERE stream = %s"
APPLY = """INSERT INTO customer_totals AS t SELECT * FROM unnest(%s::int[], %s::bigint[], %s::bigint[])
           ON CONFLICT (customer) DO UPDATE SET orders = t.orders + excluded.orders, cents = t.cents + excluded.cents"""
WITNESS = "INSERT INTO applied SELECT unnest(%s::bigint[]), %s, %s"


def consume(db, session):
    fence, position, asked_at = "not asked yet", None, None
    while not stopping.is_set():
        session.must_be_trusted()
        if asked_at != session.revision:  # new, or something has changed: ask again (asking twice does no harm)
            asked_at = session.revision
            answer = db.execute("SELECT * FROM eskit_lease.lease_acquire(%s, %s, queue => true)", (RESOURCE, session.id)).fetchone()
            session.watch("order_events" if answer.fence else None)  # before the first read; while others lead, orders are no news
            if fence != answer.fence:
                fence = answer.fence
                log("leading" if fence else "waiting", fence=fence)
                if fence is not None:  # go on where the former leader stopped
                    position = db.execute("SELECT position FROM checkpoints WHERE stream = %s", (STREAM,)).fetchone().position
        if fence is None:
            session.wait(asked_at)
        elif batch := db.execute(READ, (position, BATCH)).fetchall():
            log("read", events=len(batch), position=position)
            position = project(db, fence, batch)
            if time.monotonic() >= session.next_heartbeat:
                session.heartbeat()
        else:
            session.wait(asked_at)


def project(db, fence, batch):
    """Applies a batch and moves the checkpoint, both or neither, and only under a fence that is still valid."""
    orders, cents = Counter(event.customer for event in batch), Counter()
    for event in batch:
        cents[event.customer] += event.cents
    customers = sorted(orders)
    with db.transaction():
        db.execute("SELECT eskit_lease.fence_check(%s, %s)", (RESOURCE, fence))
        db.execute(ADVANCE, (batch[-1].position, STREAM))
        db.execute(APPLY, (customers, [orders[c] for c in customers], [cents[c] for c in customers]))
        db.execute(WITNESS, ([event.position for event in batch], NAME, fence))
    log("applied", events=len(batch), position=batch[-1].position, fence=fence)
    return batch[-1].position


stop_on_sigterm()
while not stopping.is_set():
    try:
        with psycopg.connect(autocommit=True, row_factory=namedtuple_row, application_name=NAME) as db:
            session = Session(db, NAME, TTL, attach=True)
            consume(db, session)
            # The batch in hand is done. The session takes nothing new, and its lease goes to the next in line.
            db.execute("SELECT eskit_lease.session_drain(%s)", (session.id,))
            db.execute("SELECT eskit_lease.session_close(%s)", (session.id,))
            log("released")
    except Lost as lost:
        log("lost", reason=str(lost))
    except psycopg.Error as error:  # rolled back: a new session on a new connection goes on from what is committed
        refused = error.diag.sqlstate == "LF001"
        log("refused" if refused else "failed", sqlstate=error.diag.sqlstate,
            message=error.diag.message_primary or str(error), detail=error.diag.message_detail)
        time.sleep(0 if refused else 1)  # the server may be restarting
