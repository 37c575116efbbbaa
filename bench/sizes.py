"""The cost of one piece of work against its size: a sweep after many deaths, a rebalance, leases acquired and released
in bulk. No step in size may raise the cost for each item."""

import statistics
import time

from cluster import cluster
from crowd import BATCH, LEASES
from groups import MEMBERS, Group, Processor, come_and_go, enlist, quiet
from harness import REPEAT, connect, number, one

DEAD = number("BENCH_SIZES_DEAD", 10_000)
PARTITIONS = number("BENCH_SIZES_PARTITIONS", 4_096)
BULK = number("BENCH_SIZES_BULK", 100_000)
# The largest sizes take seconds.
ROUNDS = min(REPEAT, 3)
# The cost of each item at the full size may exceed that at a tenth of the size by this factor, as caches get too small
# and indexes grow by a level. Work that grows with the square of its size would cost ten times as much.
LINEAR = 2.0


def tens(most):
    return [10**n for n in range(1, 6) if 10**n < most] + [most]


def sizes(report):
    bulk(report)
    rebalance(report)
    with cluster("sizes", f"eskit_lease.max_sessions = {2 * ROUNDS * DEAD + 1_000}", "max_locks_per_transaction = 256") as server:
        sweep_of_one(report, server)
        sweep(report, server)


def linear(report, label, points, unit):
    """Reports the cost of each item at the full size, compared with a tenth of the size."""
    (fewer, before), (most, last) = points[-2:]
    ratio = statistics.median(last) / most / (statistics.median(before) / fewer)
    report.add(f"{label}, {most:,}", f"{statistics.median(last) * 1e6 / most:,.1f} µs {unit}", f"of {fewer:,}: {statistics.median(before) * 1e6 / fewer:,.1f} µs",
               f"{ratio:.2f}", f"<= {LINEAR}", ratio <= LINEAR)  # fmt: skip


def bulk(report):
    """Each round acquires and releases new names, in all sizes in turn."""
    lines = {"lease_acquire_many": {}, "the same again": {}, "lease_release_many": {}, "INSERT .. SELECT by hand": {}}
    with connect() as db:
        session = one(db, "SELECT session FROM eskit_lease.session_open('sizes', '1 h')")
        db.execute("CREATE TABLE IF NOT EXISTS sizes_by_hand (LIKE eskit_lease._leases INCLUDING ALL)")
        for round_of in range(1 + ROUNDS):
            for size in tens(BULK):
                names = [f"sizes/{session}/{round_of}/{size}/{n}" for n in range(size)]
                acquire = "SELECT count(*) FILTER (WHERE granted) FROM eskit_lease.lease_acquire_many(%s, %s)"
                for label, sql in (
                    ("lease_acquire_many", acquire),
                    ("the same again", acquire),
                    ("lease_release_many", "SELECT count(*) FILTER (WHERE released) FROM eskit_lease.lease_release_many(%s, %s)"),
                    ("INSERT .. SELECT by hand", """WITH made AS (INSERT INTO sizes_by_hand (resource, slot, session, fence, timeline, granted_at)
                        SELECT name, 0, session, nextval('eskit_lease.fence_seq'), 1, clock_timestamp() FROM unnest(%s::text[]) AS name,
                        (SELECT %s::uuid AS session) AS s RETURNING 1) SELECT count(*) FROM made"""),
                ):  # fmt: skip
                    quiet(db)
                    start = time.perf_counter()
                    assert one(db, sql, names, session) == size
                    if round_of > 0:
                        lines[label].setdefault(size, []).append(time.perf_counter() - start)
    for label, values in lines.items():
        linear(report, label, sorted(values.items()), "a name")
    data = {label: [[size, values] for size, values in sorted(points.items())] for label, points in lines.items()}
    report.chart("sizes_bulk", "lines", "Leases acquired and released in one call", "names", "s", data)


def rebalance(report):
    """The 64th member joins, and leaves before anything has moved. The client's time is the server's time and the round
    trip."""
    answered, spent = [], []
    with connect() as db:
        *others, last = enlist(db, "sizes-", MEMBERS)
        cpu = Processor(db)
        for partitions in [16 * 4**n for n in range(10) if 16 * 4**n < PARTITIONS] + [PARTITIONS]:
            group = Group(db, f"bench/sizes/{partitions}/{last}", partitions)
            group.fill(others)
            joins, works = come_and_go(db, group, last, cpu)
            answered.append([partitions, joins])
            spent.append([partitions, works])
    for partitions, joins in answered:
        middle = statistics.median(joins)
        bounded = partitions == 1_024
        report.add(f"group_join, member {MEMBERS} of {partitions:,} partitions", f"{middle:.2f} ms ({min(joins):.2f}-{max(joins):.2f})",
                   "", "", "< 20 ms" if bounded else "", middle < 20 if bounded else None)  # fmt: skip
    report.chart("sizes_rebalance", "lines", f"Member {MEMBERS} joins a group", "partitions", "ms", {"until answered": answered, "processor time of the server": spent})


def sweep_of_one(report, server):
    """A session with many leases dies with its connection, and the worker frees the leases in many passes. Measures
    from the end of the connection to the last lease."""
    points = []
    with server.connect() as db:
        for size in tens(BULK)[-2:]:
            found = []
            for round_of in range(ROUNDS):
                with server.connect() as attached:
                    session = one(attached, "SELECT session FROM eskit_lease.session_open('one', '1 h', attach => true)")
                    names = [f"one/{size}/{round_of}/{n}" for n in range(size)]
                    assert one(attached, "SELECT count(*) FILTER (WHERE granted) FROM eskit_lease.lease_acquire_many(%s, %s)", names, session) == size
                start, held = time.perf_counter(), "SELECT EXISTS (SELECT FROM eskit_lease._leases WHERE session = %s)"
                while one(db, held, session):
                    time.sleep(0.001)
                    assert time.perf_counter() < start + 120
                found.append(time.perf_counter() - start)
            points.append([size, found])
    linear(report, "death of one session with many leases, to the last", points, "a lease")


def sweep(report, server):
    """Sessions with ten leases each die at once, with the connection to which they are attached. The worker is off, and
    sweeps in small pieces, like the worker's, remove what they left behind."""
    points, died = [], []
    with server.connect() as db:
        db.execute("ALTER SYSTEM SET eskit_lease.worker = off")
        db.execute("SELECT pg_reload_conf()")
        for dead in tens(DEAD):
            found, ends = [], []
            for round_of in range(ROUNDS):
                ends.append(kill(server, db, f"{dead}/{round_of}", dead))
                found.append(swept(db, dead))
            points.append([dead * LEASES, found])
            died.append([dead * LEASES, ends])
    linear(report, f"session_sweep after deaths of {LEASES} leases each", points, "a lease")
    report.chart("sizes_sweep", "lines", f"Sweep after deaths of sessions with {LEASES} leases each", "leases", "s",
                 {"session_sweep, processor time": points, "until all are known to be dead": died})  # fmt: skip


def kill(server, db, label, dead):
    """Returns the seconds from the end of the connection until none of its sessions lives."""
    with server.connect() as attached:
        for low in range(1, dead + 1, BATCH):
            granted = one(
                attached,
                """SELECT count(*) FILTER (WHERE l.granted) FROM generate_series(%s::integer, %s) AS n
                   CROSS JOIN LATERAL eskit_lease.session_open('dying-' || n, '1 h', attach => true) AS o
                   CROSS JOIN LATERAL eskit_lease.lease_acquire_many(
                       ARRAY(SELECT format('sweep/%%s/%%s/%%s', %s::text, n, k) FROM generate_series(1, %s) AS k), o.session) AS l""",
                low, min(low + BATCH - 1, dead), label, LEASES)  # fmt: skip
            assert granted == (min(low + BATCH - 1, dead) - low + 1) * LEASES, granted
    start = time.perf_counter()
    while stats_of(db, "sessions_alive") > 0:
        time.sleep(0.001)
    return time.perf_counter() - start


def stats_of(db, name):
    return one(db, "SELECT value FROM eskit_lease.stats() WHERE name = %s", name)


def swept(db, dead):
    """Returns the seconds of processor time of all sweeps together."""
    cpu, ended, start = Processor(db), 0, time.perf_counter()
    before = cpu.milliseconds()
    while ended < dead:
        more, _, _ = one(db, "SELECT * FROM eskit_lease.session_sweep(1000)")
        assert more > 0 or time.perf_counter() < start + 120, f"{ended} of {dead} ended"
        ended += more
    took = (cpu.milliseconds() - before) / 1e3
    assert one(db, "SELECT count(*) FROM eskit_lease._leases WHERE session IS NOT NULL") == 0
    return took
