"""One consumer of the stream of orders. Any number of these may run: one of them leads, and the others wait in line.

The loop of README.md with an ordinary client, and no library of ours. It logs JSON lines.
"""

import json
import signal
import sys
import time
from collections import Counter

import psycopg
from psycopg.rows import namedtuple_row

NAME = sys.argv[1]
RESOURCE, STREAM = "sub:orders", "orders"
TTL = 2.0  # seconds that the session lives without a heartbeat
BATCH = 200

READ = "SELECT position, customer, cents FROM order_events WHERE position > %s ORDER BY position LIMIT %s"
ADVANCE = "UPDATE checkpoints SET position = %s WHERE stream = %s"
APPLY = """INSERT INTO customer_totals AS t SELECT * FROM unnest(%s::int[], %s::bigint[], %s::bigint[])
           ON CONFLICT (customer) DO UPDATE SET orders = t.orders + excluded.orders, cents = t.cents + excluded.cents"""
WITNESS = "INSERT INTO applied SELECT unnest(%s::bigint[]), %s, %s"

stopping = False


def log(event, **data):
    print(json.dumps({"at": time.time(), "event": event} | data), flush=True)


def stop(*_):
    global stopping
    stopping = True


class Lost(Exception):
    """The session has ended, or may have: whatever it held may be somebody else's now."""


class Session:
    """Lives by its heartbeats, and only on this connection (attach), so that a crash is noticed at once and not after the TTL."""

    def __init__(self, db):
        self.db = db
        self.id = self._ask("SELECT * FROM eskit_lease.session_open(%s, %s, attach => true)", NAME, f"{TTL} s").session

    def _ask(self, sql, *params):
        started = time.monotonic()  # trust counts from before the call: the answer may have been long on its way
        answer = self.db.execute(sql, params).fetchone()
        if not getattr(answer, "alive", True):
            raise Lost(answer.reason)
        self.trusted_until = started + answer.trust_ms / 1000
        self.next_heartbeat = started + TTL / 3
        self.revision = answer.revision
        return answer

    def heartbeat(self):
        self._ask("SELECT * FROM eskit_lease.session_heartbeat(%s)", self.id)

    def wait(self, timeout=None):
        """A heartbeat that takes its time: until something changes for this session, or the next heartbeat is due."""
        answer = self._ask("SELECT * FROM eskit_lease.session_wait(%s, %s, %s::interval)", self.id, self.revision, timeout)
        if answer.reason == "wait_limit":  # answered at once, as too many are waiting: wait here
            time.sleep(0.1)


def consume(db, session):
    fence = position = asked_at = None
    while not stopping:
        if time.monotonic() >= session.trusted_until:
            raise Lost("trust_ms has run out")
        if asked_at != session.revision:  # new, or something has changed: ask how it stands (asking twice does no harm)
            asked_at = session.revision
            fence = db.execute("SELECT * FROM eskit_lease.lease_acquire(%s, %s, queue => true)", (RESOURCE, session.id)).fetchone().fence
            log("leading" if fence else "waiting", fence=fence)
            if fence is not None:  # carry on where whoever led before has stopped
                position = db.execute("SELECT position FROM checkpoints WHERE stream = %s", (STREAM,)).fetchone().position
        if fence is None:
            session.wait()
        elif batch := db.execute(READ, (position, BATCH)).fetchall():
            log("read", events=len(batch), position=position)
            position = project(db, fence, batch)
            if time.monotonic() >= session.next_heartbeat:
                session.heartbeat()
        else:
            session.wait("30 ms")


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


signal.signal(signal.SIGTERM, stop)
while not stopping:
    try:
        with psycopg.connect(autocommit=True, row_factory=namedtuple_row, application_name=NAME) as db:
            session = Session(db)
            consume(db, session)
            # The batch in hand is done. Nothing new from here on, and what is held goes to the next in line.
            db.execute("SELECT eskit_lease.session_drain(%s)", (session.id,))
            db.execute("SELECT eskit_lease.session_close(%s)", (session.id,))
            log("released")
    except Lost as lost:
        log("lost", reason=str(lost))
    except psycopg.Error as error:  # rolled back: a new session, on a new connection, starts from what is committed
        refused = error.diag.sqlstate == "LF001"
        log("refused" if refused else "failed", sqlstate=error.diag.sqlstate,
            message=error.diag.message_primary or str(error), detail=error.diag.message_detail)
        time.sleep(0 if refused else 1)  # the server may be restarting
