"""The operations of a client, one call of each.

`operation(calls)` prepares so many calls, and returns a function that makes the i-th. The caller decides what to count:
WAL, transaction ids or processor time."""

import itertools
import uuid

from harness import one

PAYLOAD = "what a projection writes for one event"
TABLES = """
    CREATE TABLE op_work (n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload text NOT NULL);
    SELECT eskit_lease.queue_create('op');
    SELECT eskit_lease.queue_create('op/empty');
    SELECT eskit_lease.group_create('op', 1);
"""


class Operations:
    """All operations use one connection, and sessions of their own."""

    def __init__(self, db):
        self.db, self.counter = db, itertools.count(1)
        db.execute(TABLES)
        self.own, self.other, self.holder = (self.session(name) for name in ("own", "other", "holder"))
        self.revision = one(db, "SELECT revision FROM eskit_lease.session_heartbeat(%s)", self.own)
        self.run("SELECT * FROM eskit_lease.lease_acquire('op/held', %s)", self.holder)
        # Changes the session's revision, so a session_wait from the former one returns at once.
        self.fence = self.acquire("op/own", self.own)
        self.run("SELECT eskit_lease.group_join('op', %s)", self.own)
        self.partition_fence = one(db, "SELECT fence FROM eskit_lease.group_assignment('op', %s)", self.own)

    def session(self, consumer):
        return one(self.db, "SELECT session FROM eskit_lease.session_open(%s, '1 h')", consumer)

    def run(self, sql, *values):
        return self.db.execute(sql, values, prepare=True).fetchone()

    def names(self, calls):
        return [f"op/new/{next(self.counter)}" for _ in range(calls)]

    def acquire(self, name, session):
        granted, fence = self.run("SELECT granted, fence FROM eskit_lease.lease_acquire(%s, %s)", name, session)
        assert granted, name
        return fence

    def release(self, name, fence):
        assert self.run("SELECT eskit_lease.lease_release(%s, %s)", name, fence)[0]

    def all(self):
        return {
            "SELECT 1": self.select_1,
            "heartbeat": self.heartbeat,
            "session_wait, news there": self.wait,
            "session_open + close": self.open_close,
            "session_open, takeover": self.takeover,
            "lease_acquire, refused": self.refused,
            "lease_acquire by the holder": self.again,
            "lease_acquire + release, new name": self.new_name,
            "lease_release, hand-over": self.hand_over,
            "queue + cancel": self.queue_cancel,
            "lock_acquire + release": self.lock,
            "INSERT": self.insert,
            "fence_check + INSERT": self.fenced,
            "cursor_commit": self.cursor,
            "item_add": self.item_add,
            "item_claim + done": self.item,
            "item_claim, nothing there": self.nothing,
            "execution_begin + finish": self.execution,
        }

    def select_1(self, _):
        return lambda _: self.run("SELECT 1")

    def heartbeat(self, _):
        return lambda _: self.run("SELECT * FROM eskit_lease.session_heartbeat(%s)", self.own)

    def wait(self, _):
        def call(_):
            assert self.run("SELECT * FROM eskit_lease.session_wait(%s, %s)", self.own, self.revision)[4] == "changed"

        return call

    def open_close(self, _):
        def call(_):
            opened = self.run("SELECT session FROM eskit_lease.session_open('passing', '1 h')")[0]
            self.run("SELECT eskit_lease.session_close(%s)", opened)

        return call

    def takeover(self, _):
        """Takes over from the session that the call before has opened."""
        return lambda _: self.run("SELECT session FROM eskit_lease.session_open('again', '1 h', takeover => true)")

    def refused(self, _):
        def call(_):
            assert self.run("SELECT * FROM eskit_lease.lease_acquire('op/held', %s)", self.own)[5] == "held"

        return call

    def again(self, _):
        def call(_):
            assert self.run("SELECT * FROM eskit_lease.lease_acquire('op/own', %s)", self.own)[5] == "already_held"

        return call

    def new_name(self, calls):
        names = self.names(calls)
        return lambda i: self.release(names[i], self.acquire(names[i], self.own))

    def hand_over(self, calls):
        """Releases names that another session waits for."""
        names = self.names(calls)
        self.run("SELECT count(*) FROM eskit_lease.lease_acquire_many(%s, %s)", names, self.own)
        queued = "SELECT count(*) FROM unnest(%s::text[]) AS n, eskit_lease.lease_acquire(n, %s, true) AS l WHERE l.reason = 'queued'"
        assert self.run(queued, names, self.other)[0] == calls
        fences = dict(self.db.execute("SELECT resource, fence FROM eskit_lease._leases WHERE resource = ANY (%s)", (names,)).fetchall())
        return lambda i: self.release(names[i], fences[names[i]])

    def queue_cancel(self, _):
        def call(_):
            assert self.run("SELECT * FROM eskit_lease.lease_acquire('op/held', %s, true)", self.own)[5] == "queued"
            assert self.run("SELECT eskit_lease.lease_cancel('op/held', %s)", self.own)[0]

        return call

    def lock(self, calls):
        names = self.names(calls)

        def call(i):
            fence = self.run("SELECT fence FROM eskit_lease.lock_acquire(%s, 'job', '1 h')", names[i])[0]
            self.release(names[i], fence)

        return call

    def insert(self, _):
        return lambda _: self.run("INSERT INTO op_work (payload) VALUES (%s) RETURNING n", PAYLOAD)

    def fenced(self, _):
        sql = "INSERT INTO op_work (payload) SELECT %s FROM eskit_lease.fence_check('op/own', %s) RETURNING n"
        return lambda _: self.run(sql, PAYLOAD, self.fence)

    def cursor(self, _):
        def call(_):
            assert self.run("SELECT eskit_lease.cursor_commit('op', 0, %s, %s)", next(self.counter), self.partition_fence)[0]

        return call

    def item_add(self, _):
        return lambda _: self.run("""SELECT eskit_lease.item_add('op', '{"to": "bob"}')""")

    def item(self, calls):
        """Claims and finishes items, oldest first, with `calls` of them added beforehand."""
        self.run("""SELECT eskit_lease.item_add_many('op', array_fill('{"to": "bob"}'::jsonb, ARRAY[%s::integer]))""", calls)

        def call(_):
            item, fence = self.run("SELECT id, fence FROM eskit_lease.item_claim('op', %s)", self.own)
            assert self.run("SELECT eskit_lease.item_done(ARRAY[%s::bigint], %s)", item, fence)[0] == 1

        return call

    def nothing(self, _):
        def call(_):
            assert self.run("SELECT id, fence FROM eskit_lease.item_claim('op/empty', %s)", self.own) is None

        return call

    def execution(self, calls):
        keys = [str(uuid.uuid4()) for _ in range(calls)]

        def call(i):
            fence = self.run("SELECT fence FROM eskit_lease.execution_begin(%s, %s)", keys[i], self.own)[0]
            assert self.run("SELECT eskit_lease.execution_finish(%s, %s)", keys[i], fence)[0]

        return call
