"""Expiry storms: thousands of sessions die at one instant, with ten leases each. Living sessions wait for some of the
leases, and send heartbeats on connections of their own while the worker hands over. A storm takes two seconds, and
twenty of its two thousand heartbeats decide the p99. So there are several storms, in turns, and the report has
medians."""

import contextlib
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import typing

from crowd import BATCH, LEASES, enlist, gather
from harness import HERE, REPEAT, SESSIONS, connect, one, percentile, pgbench_command, show, stats

WAITERS = 100
TTL = 10  # seconds
RATE = 1_000  # heartbeats per second
BUSY = 2  # seconds, as long as the largest storm takes
PATIENCE = 30  # seconds
BEAT = "SELECT count(*) FILTER (WHERE h.alive), max(h.expires_at) FROM {} AS s, eskit_lease.session_heartbeat(s.session) AS h"


class Heartbeats(typing.NamedTuple):
    """Milliseconds of heartbeats before a load began and during it."""

    before: list
    during: list


class Strike(typing.NamedTuple):
    served: float  # seconds from the deadline to the last grant
    swept: float  # to the end of the last session
    heartbeats: Heartbeats
    well: bool  # all leases were handed over, and no waiter has died


def storm(report):
    sizes = (SESSIONS // 10, SESSIONS, SESSIONS * LEASES)
    strikes = {waited: [] for waited in sizes}
    by_hand = []
    beside_others = {"that only computes": [], "that updates rows of a plain table, 1,000 at a time": []}
    for _ in range(REPEAT):
        for waited in sizes:
            strikes[waited].append(strike(waited))
        by_hand.append(strike_by_hand())
        for measured, work in zip(beside_others.values(), (compute, write)):
            measured.append(beside(work))
    for waited, struck in strikes.items():
        served, well = [each.served for each in struck], all(each.well for each in struck)
        report.check(f"expiry of {SESSIONS * LEASES:,} leases, {waited:,} waited for", f"handed over after {show(served, 's')}", "<= 2 s",
                     statistics.median(served) <= 2 and well)  # fmt: skip
        if waited == SESSIONS * LEASES:
            report.ratio("  its time, of that of the same by hand (information)", served, "SQL by hand", by_hand, unit="s")
        report.add("  all rows of the dead swept (information)", f"after {show([each.swept for each in struck], 's')}")
        tell(report, "  heartbeats of others", [each.heartbeats for each in struck], well)
    for whom, measured in beside_others.items():
        tell(report, f"  heartbeats beside a process {whom} (information)", measured)


def prepare(db, waited):
    """Opens the sessions that will die, acquires their leases, and opens the sessions that wait. No session dies
    meanwhile."""
    db.execute("DROP TABLE IF EXISTS storm_sessions, storm_waiters")

    def beat():
        for table in ("storm_sessions", "storm_waiters"):
            alive, _ = one(db, BEAT.format(table))
            assert alive == one(db, f"SELECT count(*) FROM {table}"), "a session died while the benchmark was being set up"

    enlist(db, "storm_waiters", "waiter-", 1, WAITERS, TTL)
    gather(db, "storm_sessions", f"storm/{waited}", TTL, beat)
    for low in range(1, waited + 1, BATCH):
        queued = one(
            db,
            """SELECT count(*) FILTER (WHERE l.reason = 'queued') FROM generate_series(%s::integer, %s) AS i
               JOIN storm_waiters AS w ON w.n = 1 + i %% %s
               CROSS JOIN LATERAL eskit_lease.lease_acquire(
                   format('storm/%%s/%%s/%%s', %s::integer, 1 + (i - 1) %% %s, 1 + (i - 1) / %s), w.session, true) AS l""",
            low, min(low + BATCH - 1, waited), WAITERS, waited, SESSIONS, SESSIONS)  # fmt: skip
        assert queued == min(BATCH, waited - low + 1), queued
        beat()
    db.execute("VACUUM (ANALYZE)")  # otherwise autovacuum would do so in the middle of some storm


def until(db, counter, value, every):
    """Polls until a counter reaches a value, and returns the time of that. A count of rows would use as much of the
    processors as the work that it watches."""
    end = time.time() + PATIENCE
    while one(db, "SELECT value FROM eskit_lease.stats() WHERE name = %s", counter) < value:
        if time.time() > end:
            return float("inf")
        time.sleep(every)
    return time.time()


@contextlib.contextmanager
def heartbeats(seconds):
    """Sends heartbeats of the waiters on connections of their own. Gives a function that ends them and returns the
    directory with their latencies."""
    with tempfile.TemporaryDirectory() as logs:
        command = pgbench_command("heartbeat_of_waiter", "--log", f"--log-prefix={logs}/log", f"--rate={RATE}", seconds=seconds, waiters=WAITERS)
        others = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def end():
            others.terminate()
            others.wait()
            return logs

        try:
            yield end
        finally:
            end()


def strike(waited):
    with connect() as db:
        prepare(db, waited)
        alive, deadline = one(db, BEAT.format("storm_sessions"))
        assert alive == SESSIONS
        deadline = deadline.timestamp()
        with heartbeats(TTL + 60) as end:
            began = time.time()
            counted = stats(db)
            time.sleep(max(0, deadline - time.time()))
            served = until(db, "hand_overs", counted["hand_overs"] + waited, every=0.02)
            swept = until(db, "sessions_expired", counted["sessions_expired"] + SESSIONS, every=0.05)
            time.sleep(0.5)
            logs = end()
            measured = Heartbeats(latencies(logs, began + 2, deadline), latencies(logs, deadline, min(swept, deadline + PATIENCE)))
        held = one(db, """SELECT count(*) FROM eskit_lease._leases AS l JOIN storm_waiters AS w USING (session)
                          WHERE l.resource LIKE %s""", f"storm/{waited}/%")  # fmt: skip
        living, _ = one(db, BEAT.format("storm_waiters"))
        db.execute("SELECT eskit_lease.session_close(session) FROM storm_waiters")
        return Strike(served - deadline, swept - deadline, measured, held == waited and living == WAITERS)


def strike_by_hand():
    """Returns the seconds in which plain SQL hands over as many leases, 1,000 in each statement, as the worker does."""
    with connect() as db:
        db.execute((HERE / "sql" / "storm_by_hand.sql").read_text())
        db.execute("CALL prepare_storm_by_hand(%s, %s, %s)", (SESSIONS, LEASES, WAITERS))
        db.execute("VACUUM (ANALYZE)")
        # Forces index look-ups; the planner would read whole tables for 1,000 rows.
        db.execute("SET jit = off; SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off")
        began = time.time()
        db.execute("CALL storm_by_hand()")
        took = time.time() - began
        left = one(db, "SELECT (SELECT count(*) FROM hand_waiters), (SELECT count(*) FROM hand_sessions)")
        assert left == (0, WAITERS), left
        return took


def beside(work):
    """Measures heartbeats beside a process that uses as much of the processors as the worker in a storm, and calls
    nothing of ours."""
    with connect() as db:
        db.execute("DROP TABLE IF EXISTS storm_waiters, storm_plain; CREATE TABLE storm_plain (id integer PRIMARY KEY, n integer, owner uuid)")
        db.execute("INSERT INTO storm_plain SELECT i, 0 FROM generate_series(1, 100000) AS i; CREATE INDEX ON storm_plain (owner, id); ANALYZE storm_plain")
        enlist(db, "storm_waiters", "waiter-", 1, WAITERS, TTL)
        with heartbeats(60) as end:
            time.sleep(2)
            began = time.time()
            time.sleep(BUSY)
            since = time.time()
            work(since + BUSY)
            ended = time.time()
            logs = end()
            measured = Heartbeats(latencies(logs, began, since), latencies(logs, since, ended))
        assert one(db, BEAT.format("storm_waiters"))[0] == WAITERS
        db.execute("SELECT eskit_lease.session_close(session) FROM storm_waiters")
        return measured


def compute(end):
    """Computes without a database: it slows others only by sharing two processors with them."""
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    time.sleep(end - time.time())
    busy.kill()
    busy.wait()


def write(end):
    """Lets a backend write as much as the worker does, in transactions of the same length."""
    low = 1
    with connect() as db:
        while time.time() < end:
            db.execute("UPDATE storm_plain SET n = n + 1, owner = gen_random_uuid() WHERE id BETWEEN %s AND %s", (low, low + 999))
            low = 1 + (low + 999) % 100_000


def tell(report, what, measured, well=None):
    """Reports latencies. Only storms have a bound; the rows for comparison have none."""
    times = [percentile(each.during, 99) / percentile(each.before, 99) for each in measured]
    longest = max(max(each.during, default=0) for each in measured)
    told = f"p99 {statistics.median(times):.1f} ({min(times):.1f}-{max(times):.1f}), max {longest:.0f} ms"
    bound = () if well is None else ("p99 <= 3", well and statistics.median(times) <= 3)
    report.add(what, percentiles_of(measured, "during"), f"before {percentiles_of(measured, 'before')}", told, *bound)


def percentiles_of(measured, when):
    p50, p99 = (statistics.median(percentile(getattr(each, when), percent) for each in measured) for percent in (50, 99))
    return f"p50 {p50:.2f} p99 {p99:.2f} ms"


def latencies(logs, begin, end):
    """Returns the milliseconds of the transactions that ended in this time, counted from when they were due."""
    found = []
    for log in pathlib.Path(logs).iterdir():
        for line in log.read_text().splitlines():
            fields = line.split()
            if len(fields) >= 6 and begin <= int(fields[4]) + int(fields[5]) / 1e6 <= end:
                found.append(int(fields[2]) / 1_000)
    return found
