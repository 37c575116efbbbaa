"""Consumer groups: the cost of a join, alone and with 200 at once, and how it grows; cursors; semaphores."""

import math
import pathlib
import random
import statistics
import threading
import time

from harness import CLIENTS, REPEAT, connect, interleave, number, one, pgbench, stats

PARTITIONS = 1_024
MEMBERS = 64
CROWD = number("BENCH_JOINERS", 200)
CONNECTIONS = 25  # that the crowd uses
GROWTH_PARTITIONS = (64, 256, 1_024, 4_096, 16_384, 32_768)
GROWTH_MEMBERS = (16, 64, 256, 1_000)
SETTLE = 120  # seconds to wait for a group at most
# The allowed factor between a cost and the curve. On a busy machine the median of several joins is exact to a quarter,
# so a ratio of two differences is exact to a half. Quadratic growth would be off by a factor of more than three in both
# cases below.
NOISE = 1.75


class Group:
    """A group and its members, which this process drives."""

    def __init__(self, db, name, partitions, settle_delay="0"):
        self.db, self.name, self.partitions = db, name, partitions
        db.execute("SELECT eskit_lease.group_create(%s, %s, settle_delay => %s::interval)", (name, partitions, settle_delay))

    def fill(self, sessions):
        """Lets all sessions join, and then computes the targets once."""
        self.db.execute("SELECT eskit_lease.group_alter(%s, settle_delay => '1 h')", (self.name,))
        self.db.execute("SELECT eskit_lease.group_join(%s, s) FROM unnest(%s::uuid[]) AS s", (self.name, sessions))
        self.db.execute("SELECT eskit_lease.group_alter(%s, settle_delay => '0')", (self.name,))
        # From here on the planner must know how large the group is.
        self.db.execute("ANALYZE eskit_lease._partitions, eskit_lease._leases")
        self.settle(len(sessions))

    def join(self, session):
        return join(self.db, self.name, session)

    def leave(self, session):
        assert one(self.db, "SELECT eskit_lease.group_leave(%s, %s)", self.name, session)

    def unsettled(self):
        return one(
            self.db,
            """SELECT count(*) FILTER (WHERE l.session IS DISTINCT FROM p.target OR p.revoking = l.fence) + %s - count(*)
               FROM eskit_lease._partitions AS p LEFT JOIN eskit_lease._leases AS l ON (l.resource, l.slot) = (p.group_name, p.partition)
               WHERE p.group_name = %s""", self.partitions, self.name)  # fmt: skip

    def settle(self, members):
        """Waits until each member has its share. Releases revoked partitions in the owners' names."""
        end = time.monotonic() + SETTLE
        counted = "SELECT count(*) FROM eskit_lease._members WHERE group_name = %s AND counted = 'active'"
        while one(self.db, counted, self.name) != members or self.unsettled() > 0:
            assert time.monotonic() < end, f"{self.name} does not settle: {self.unsettled()} partitions"
            released = one(
                self.db,
                """SELECT count(*) FILTER (WHERE eskit_lease.group_release(p.group_name, p.partition, p.revoking))
                   FROM eskit_lease._partitions AS p JOIN eskit_lease._leases AS l ON (l.resource, l.slot) = (p.group_name, p.partition)
                   WHERE p.group_name = %s AND p.revoking = l.fence""", self.name)  # fmt: skip
            time.sleep(0 if released else 0.02)

    def generation(self):
        return one(self.db, "SELECT generation FROM eskit_lease.groups WHERE group_name = %s", self.name)


def enlist(db, name, members):
    rows = db.execute("SELECT o.session FROM generate_series(1, %s) AS n, eskit_lease.session_open(%s || n, '1 h') AS o", (members, name))
    return [session for (session,) in rows.fetchall()]


def join(db, name, session):
    """Returns the milliseconds from the call to its answer, when the join is committed and the owners' revisions have
    grown."""
    start = time.perf_counter()
    db.execute("SELECT eskit_lease.group_join(%s, %s)", (name, session), prepare=True)
    return (time.perf_counter() - start) * 1_000


def spread(times):
    return f"{statistics.median(times):.2f} ms ({min(times):.2f}-{max(times):.2f})"


def deadlocks(db):
    return one(db, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")


class Processor:
    """The processor time of a connection's backend, which other processes hardly change. Waits for the disk are no part
    of it."""

    def __init__(self, db):
        self.path = pathlib.Path(f"/proc/{one(db, 'SELECT pg_backend_pid()')}/schedstat")

    def milliseconds(self):
        return int(self.path.read_text().split()[0]) / 1e6


def quiet(db):
    """Waits until the worker has rested for a while, as its work after the last operation is no part of the next
    measurement."""
    busy = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'eskit_lease worker' AND state = 'active'"
    rest = time.monotonic()
    while time.monotonic() < rest + 0.05:
        if one(db, busy) > 0:
            rest = time.monotonic()
        time.sleep(0.005)


def come_and_go(db, group, newcomer, spent):
    """Lets a session join and leave again before anything has moved, again and again. Returns the milliseconds of its
    joins, and of the backend's processor time for them. The first joins do not count, as they make plans."""
    joins, works = [], []
    for _ in range(2 + REPEAT):
        quiet(db)
        before = spent.milliseconds()
        joins.append(group.join(newcomer))
        works.append(spent.milliseconds() - before)
        quiet(db)
        group.leave(newcomer)
    return joins[2:], works[2:]


def groups(report):
    with connect() as db:
        sessions = enlist(db, "member-", max(GROWTH_MEMBERS) + 1)
        last_member(report, db, sessions)
        crowds(report, db)
        growth(report, db, sessions)


def last_member(report, db, sessions):
    """The 64th member joins a group of 1,024 partitions: 16 owners must release one each."""
    group = Group(db, "bench/last", PARTITIONS)
    *others, last = sessions[:MEMBERS]
    group.fill(others)
    joins, told = [], []
    with connect() as listener:
        for _ in range(2 + REPEAT):
            owner, revision = one(
                db,
                """SELECT l.session, h.revision FROM eskit_lease._leases AS l, eskit_lease.session_heartbeat(l.session) AS h
                   WHERE l.resource = %s GROUP BY l.session, h.revision ORDER BY count(*) DESC, l.session LIMIT 1""",
                group.name)  # fmt: skip
            seen = []

            def wait(owner=owner, revision=revision, seen=seen):
                answer = one(listener, "SELECT reason FROM eskit_lease.session_wait(%s, %s, '5 s')", owner, revision)
                seen.append((time.perf_counter(), answer))

            receiver = threading.Thread(target=wait)
            receiver.start()
            while stats(db)["calls_waiting"] == 0:
                time.sleep(0.0005)
            quiet(db)
            start = time.perf_counter()
            joins.append(group.join(last))
            receiver.join()
            told.append((seen[0][0] - start) * 1_000)
            assert seen[0][1] == "changed", seen
            group.settle(MEMBERS)
            group.leave(last)
            group.settle(MEMBERS - 1)
    # The first joins do not count, as they make plans.
    joins, told = joins[2:], told[2:]
    middle = statistics.median(joins)
    report.check(f"group_join, member {MEMBERS} of {PARTITIONS:,} partitions", spread(joins), "< 20 ms", middle < 20)
    report.add("  until a revoked owner has seen it (information)", spread(told))


def crowds(report, db):
    for delay in ("0", "100 ms"):
        before = deadlocks(db)
        group = Group(db, f"bench/crowd/{delay}", PARTITIONS, delay)
        took, joins, failures = Crowd(group, enlist(db, "crowd-", CROWD)).run()
        unsettled = group.unsettled()
        # A backend's counters are visible once it has ended.
        time.sleep(1)
        met = deadlocks(db) - before
        ok = unsettled == 0 and met == 0 and not failures
        report.check(f"{CROWD} join at once, settle_delay {delay}", f"settled after {took:.2f} s", f"{met} deadlocks", ok)
        report.add("  generations, one join (information)", f"{group.generation()}", spread(joins))
        for failure in failures[:3]:
            print(f"    {failure}")


class Crowd:
    """Members on a few connections: they join at once, ask for their assignment when their revision has changed, and give back at
    once what is revoked."""

    def __init__(self, group, sessions):
        self.group, self.sessions = group, sessions
        self.owned = dict.fromkeys(sessions)
        self.barrier = threading.Barrier(CONNECTIONS + 1)
        self.joins, self.failures, self.done = [], [], threading.Event()

    def run(self):
        threads = [threading.Thread(target=self.drive, args=(self.sessions[i::CONNECTIONS],)) for i in range(CONNECTIONS)]
        for thread in threads:
            thread.start()
        self.barrier.wait()
        start = time.monotonic()
        while not self.settled() and not self.failures and time.monotonic() < start + SETTLE:
            time.sleep(0.005)
        took = time.monotonic() - start if self.settled() else float("inf")
        self.done.set()
        for thread in threads:
            thread.join()
        return took, self.joins, self.failures

    def settled(self):
        share = self.group.partitions // len(self.sessions)
        owned = list(self.owned.values())
        return all(n in (share, share + 1) for n in owned) and sum(owned) == self.group.partitions

    def drive(self, mine):
        try:
            with connect() as db:
                seen = dict.fromkeys(mine)
                self.barrier.wait()
                for session in mine:
                    self.joins.append(join(db, self.group.name, session))
                while not self.done.wait(0.02 + random.random() * 0.01):
                    beats = db.execute("SELECT s, h.revision FROM unnest(%s::uuid[]) AS s, eskit_lease.session_heartbeat(s) AS h", (mine,))
                    for session, revision in beats.fetchall():
                        if seen[session] != revision:
                            seen[session] = revision
                            self.owned[session] = self.ask(db, session)
        except Exception as failure:
            self.failures.append(failure)

    def ask(self, db, session):
        """Returns the partitions that the session owns and may keep, and releases the rest."""
        rows = db.execute("SELECT partition, fence, state FROM eskit_lease.group_assignment(%s, %s)", (self.group.name, session)).fetchall()
        for partition, fence, state in rows:
            if state == "revoking":
                db.execute("SELECT eskit_lease.group_release(%s, %s, %s)", (self.group.name, partition, fence))
        return sum(state == "owned" for _, _, state in rows)


def growth(report, db, sessions):
    """One rebalance, in processor time: a session joins, which computes the targets anew and revokes a share of each
    member's partitions. The session leaves before a partition has moved, which undoes the revocations."""
    costs = {}
    newcomer = sessions[-1]
    spent = Processor(db)
    for partitions, members in [(p, MEMBERS) for p in GROWTH_PARTITIONS] + [(PARTITIONS, n) for n in GROWTH_MEMBERS]:
        if (partitions, members) in costs:
            continue
        group = Group(db, f"bench/growth/{partitions}/{members}", partitions)
        group.fill(sessions[:members])
        joins, works = come_and_go(db, group, newcomer, spent)
        assert group.unsettled() == 0
        costs[partitions, members] = statistics.median(works)
        report.add(f"group_join, {partitions:,} partitions, {members:,} members", spread(works), f"until answered {spread(joins)}")
    curve(report, "partitions", [(costs[p, MEMBERS], p) for p in (1_024, 4_096, 32_768)])
    curve(report, "members", [(costs[PARTITIONS, n], n) for n in (64, 256, 1_000)])


def curve(report, what, points):
    """Compares the increase of the last step with that of the step before, so constant costs and factors cancel out."""
    (least, _), (middle, _), (most, _) = points
    low, mid, high = (n * math.log2(n) for _, n in points)
    grew, allowed = (most - middle) / (middle - least), (high - mid) / (mid - low)
    steps = " to ".join(f"{n:,}" for _, n in points)
    report.check(f"growth with {what}, {steps}", f"{grew:.1f} times, n log n {allowed:.1f}", f"<= {allowed * NOISE:.1f}",
                 grew <= allowed * NOISE)  # fmt: skip


def cursors(report):
    with connect() as db:
        members = [session for (session,) in db.execute("SELECT session FROM clients WHERE n < %s ORDER BY n", (CLIENTS,)).fetchall()]
        for name in ("bench/cursors", "bench/acks"):
            Group(db, name, CLIENTS).fill(members)
    values = interleave({
        "plain": lambda: pgbench("work"),
        "commit": lambda: pgbench("cursor_commit"),
        "apart": lambda: pgbench("cursor_commit_apart"),
        "ack": lambda: pgbench("cursor_ack"),
        "by_hand": lambda: pgbench("cursor_by_hand"),
    })  # fmt: skip
    report.ratio("cursor_commit with an INSERT, committed", values["commit"], "without", values["plain"], at_least=0.71)
    report.ratio("cursor_commit in a statement of its own (information)", values["apart"], "without", values["plain"])
    report.ratio("cursor_ack + INSERT (information)", values["ack"], "without", values["plain"])
    report.ratio("UPDATE of a cursor + INSERT (information)", values["by_hand"], "without", values["plain"])


def semaphores(report):
    """Connections acquire and release permits, with one permit for each connection, and with 1,000 permits when other
    sessions hold the rest."""
    with connect() as db:
        for permits in (CLIENTS, 1_000):
            db.execute("SELECT eskit_lease.semaphore_create(%s, %s)", (f"bench/permits/{permits}", permits))
        held = one(
            db,
            "SELECT count(*) FROM unnest(%s::uuid[]) AS s, eskit_lease.lease_acquire('bench/permits/1000', s) AS l WHERE l.granted",
            enlist(db, "permit-", 1_000 - CLIENTS))  # fmt: skip
        assert held == 1_000 - CLIENTS, held
        refused = {}

        def permit(permits):
            before = stats(db)
            tps = pgbench("permit", permits=permits)
            after = stats(db)
            tries, refusals = (after[k] - before[k] for k in ("grants", "refusals"))
            refused[permits] = f"{refusals / max(1, tries + refusals):.1%}"
            return tps

        values = interleave({
            "lease": lambda: pgbench("lease_of_own"),
            "few": lambda: permit(CLIENTS),
            "many": lambda: permit(1_000),
        })  # fmt: skip
        for what, permits in [("few", CLIENTS), ("many", 1_000)]:
            label = f"a permit of {permits:,}, had and given back (information)"
            report.ratio(label, values[what], "exclusive lease", values["lease"])
            report.add("  refused as busy", refused[permits])
