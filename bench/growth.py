"""The cost of each operation as sessions, leases, members of one group, waiters of one resource or databases grow in
number: the processor time of its backend. Each turn is compared with one on a second server that stays small, so
changes of the machine's speed cancel out."""

import statistics
import time

import tenants
from cluster import cluster
from cost import Meter, middle, turns
from harness import number
from populations import Databases, Leases, Members, Sessions, Waiters

SESSIONS = number("BENCH_GROWTH_SESSIONS", 100_000)
LEASES = number("BENCH_GROWTH_LEASES", 1_000_000)
MEMBERS = number("BENCH_GROWTH_MEMBERS", 2_000)
WAITERS = number("BENCH_GROWTH_WAITERS", 10_000)
DATABASES = number("BENCH_GROWTH_DATABASES", 50)
CALLS = number("BENCH_GROWTH_CALLS", 25)  # calls of a turn
TURNS = number("BENCH_GROWTH_TURNS", 15)
# A constant cost may seem to grow by this factor.
FLAT = 1.5
NOTABLE = 25  # microseconds of the launcher and the worker, for one call
ROOM = ("max_locks_per_transaction = 256", f"eskit_lease.max_sessions = {SESSIONS + 20_000}", "max_worker_processes = 16",
        f"eskit_lease.max_databases = {DATABASES + 14}")  # fmt: skip


def growth(report):
    for what, population, most in (("sessions", Sessions, SESSIONS), ("leases", Leases, LEASES), ("members", Members, MEMBERS), ("waiters", Waiters, WAITERS)):
        along(report, what, population, [10**n for n in range(6) if population.least <= 10**n < most] + [most])
    late, beside = [], []

    def expire(server, databases):
        late.append((databases, tenants.at_once(server, databases)))
        if databases == DATABASES > 5:
            beside.append(tenants.beside_busy_ones(server))

    along(report, "databases", Databases, [1, *(n for n in (5, 20) if n < DATABASES), DATABASES], expire)
    tenants.tell(report, late, *beside or [None])


def along(report, what, population, sizes, then=lambda *_: None):
    points = []
    with cluster("growth", *ROOM) as grown, cluster("growth-small", *ROOM) as small:
        sides = []
        for server in (grown, small):
            db, other = server.connect(), server.connect()
            sides.append((population(server, db, other), Meter(db, other)))
        (crowd, _), (few, _) = sides
        few.grow(population.least)
        for size in sizes:
            crowd.grow(size)
            time.sleep(0.5)
            points.append((size, turns([(meter, p.operations.all() | p.special()) for p, meter in sides], CALLS, TURNS)))
            then(grown, size)
        for side, _ in sides:
            side.operations.db.close()
            side.other.close()
    tell(report, what, population.least, points)


def tell(report, what, least, points):
    most, (last, _) = points[-1]
    data, grew = {}, {}
    for name in last:
        # The median cost on the small server, times the ratio between the servers.
        usual = statistics.median(turn.cpu for _, (_, few) in points for turn in few[name])
        ratios = [(size, [a.cpu / b.cpu for a, b in zip(crowd[name], few[name])]) for size, (crowd, few) in points]
        data[name] = [[size, [round(usual * ratio, 1) for ratio in values]] for size, values in ratios]
        grew[name] = ratios[-1][1]
    report.chart(f"growth_{what}", "lines", f"One call against {what}", what, "processor time of the server, µs", data)
    report.add(f"{most:,} {what}, against {least}:", "processor time of the backend")
    crowd, few = points[-1][1]
    for name, ratios in grew.items():
        ratio = statistics.median(ratios)
        answered = statistics.median(a.waited / b.waited for a, b in zip(crowd[name], few[name]))
        mine, theirs = (f"{middle(side[name]):,.0f} µs, workers' {statistics.mean(turn.workers for turn in side[name]):,.0f}" for side in (crowd, few))
        report.add(f"  {name}", mine, f"{theirs}; until answered {answered:.2f} times",
                   f"{ratio:.2f} ({min(ratios):.2f}-{max(ratios):.2f})", f"<= {FLAT}", ratio <= FLAT)  # fmt: skip
    for name in grew:
        # Launcher and worker may still be busy with work of the operation before.
        mine, theirs = (statistics.mean(turn.workers for turn in side[name]) for side in (crowd, few))
        if mine > FLAT * theirs + NOTABLE:
            report.add(f"  {name}: launcher and worker", f"{mine:,.0f} µs", f"{theirs:,.0f} µs", f"{mine / max(theirs, 1):.1f}", f"<= {FLAT}", False)
    mine, theirs = (statistics.mean(turn.workers for found in side.values() for turn in found) for side in (crowd, few))
    report.add("  launcher and worker for one call, on average", f"{mine:,.1f} µs", f"{theirs:,.1f} µs", f"{mine / max(theirs, 1):.2f}", f"<= {FLAT}",
               mine <= FLAT * theirs + NOTABLE)  # fmt: skip
