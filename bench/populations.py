"""The populations that may grow, for the growth of costs: sessions, leases, members
of one group, waiters of one resource, databases. Each fills a server up to a given size, and knows the operations whose
cost may depend on it."""

from crowd import BATCH, enlist
from harness import one
from operations import Operations

CHUNK = 100_000  # the most names of one call


class Population:
    """`db` is the connection that measures, on which only the operations run."""

    least = 10

    def __init__(self, server, db, other):
        self.server, self.other, self.count = server, other, 0
        self.operations = Operations(db)
        self.run = self.operations.run

    def grow(self, population):
        while self.count < population:
            more = min(self.chunk, population - self.count)
            self.add(self.count + 1, self.count + more)
            self.count += more

    def special(self):
        """Returns operations of this population, beside those that all populations have."""
        return {}


class Sessions(Population):
    chunk = BATCH

    def add(self, low, high):
        enlist(self.other, "crowd", "crowd-", low, high, 3_600)


class Leases(Population):
    """Leases of one session, which reveal an operation that looks at all that the session holds."""

    chunk = CHUNK

    def __init__(self, *connections):
        super().__init__(*connections)
        self.big = self.operations.session("big")

    def add(self, low, high):
        granted = one(self.other, """SELECT count(*) FILTER (WHERE granted) FROM eskit_lease.lease_acquire_many(
                                     ARRAY(SELECT 'many/' || n FROM generate_series(%s::integer, %s) AS n), %s)""", low, high, self.big)  # fmt: skip
        assert granted == high - low + 1, granted

    def special(self):
        return {
            "heartbeat of who holds all": lambda _: lambda _: self.run("SELECT * FROM eskit_lease.session_heartbeat(%s)", self.big),
            "acquire + release by who holds all": self.one_more,
            "lease_renew of one of them": self.renew,
        }

    def one_more(self, calls):
        names = self.operations.names(calls)
        return lambda i: self.operations.release(names[i], self.operations.acquire(names[i], self.big))

    def renew(self, _):
        fence = one(self.other, "SELECT fence FROM eskit_lease._leases WHERE resource = 'many/1'")

        def call(_):
            assert self.run("SELECT * FROM eskit_lease.lease_renew('many/1', %s)", fence)[0]

        return call


class Members(Population):
    """Members of one group. Its partitions have no owners, as newcomers are gathered for a day."""

    chunk = BATCH

    def __init__(self, *connections):
        super().__init__(*connections)
        one(self.other, "SELECT eskit_lease.group_create('crowd', 16, settle_delay => '1 day')")

    def add(self, low, high):
        enlist(self.other, "crowd", "crowd-", low, high, 3_600)
        one(self.other, "SELECT count(eskit_lease.group_join('crowd', session)) FROM crowd WHERE n BETWEEN %s AND %s", low, high)


class Waiters(Population):
    """Waiters in line for one resource."""

    least, chunk = 1, BATCH

    def __init__(self, *connections):
        super().__init__(*connections)
        self.late, self.holder = self.operations.session("late"), self.operations.session("owner")
        self.fence = self.operations.acquire("line", self.holder)

    def add(self, low, high):
        enlist(self.other, "line", "line-", low, high, 3_600)
        queued = one(self.other, """SELECT count(*) FILTER (WHERE l.reason = 'queued') FROM line AS s,
                                    eskit_lease.lease_acquire('line', s.session, true) AS l WHERE s.n BETWEEN %s AND %s""", low, high)  # fmt: skip
        assert queued == high - low + 1, queued

    def special(self):
        return {
            "refused where they wait": lambda _: lambda _: self.ask(self.late, False),
            "queue + cancel behind them": self.come_and_go,
            "asked again by the last": self.again,
            "hand-over, and back to the end": self.rotate,
            "open + queue + close behind them": self.pass_by,
        }

    def ask(self, session, queue=True):
        return self.run("SELECT * FROM eskit_lease.lease_acquire('line', %s, %s)", session, queue)

    def come_and_go(self, _):
        def call(_):
            assert self.ask(self.late)[5] == "queued"
            assert self.run("SELECT eskit_lease.lease_cancel('line', %s)", self.late)[0]

        return call

    def again(self, _):
        """A waiter that already has a place asks again."""
        last = one(self.other, "SELECT session FROM eskit_lease._waiters WHERE resource = 'line' ORDER BY place DESC LIMIT 1")
        return lambda _: self.ask(last)

    def rotate(self, _):
        """The first in line gets the lease, and the former holder goes to the end of the line."""

        def call(_):
            gone = self.holder
            self.operations.release("line", self.fence)
            self.holder, self.fence = self.run("SELECT session, fence FROM eskit_lease._leases WHERE resource = 'line'")
            assert self.holder != gone
            assert self.ask(gone)[5] == "queued"

        return call

    def pass_by(self, _):
        def call(_):
            passing = self.operations.session("passing")
            assert self.ask(passing)[5] == "queued"
            self.run("SELECT eskit_lease.session_close(%s)", passing)

        return call


class Databases(Population):
    least, chunk = 1, 1

    def add(self, low, high):
        # Every server has the first database.
        for number in range(max(2, low), high + 1):
            self.server.create(f"tenant{number}")
