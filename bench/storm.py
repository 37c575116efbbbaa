"""An expiry storm: thousands of sessions die at one instant, with ten leases each. Living sessions wait for some of the leases, and
keep sending heartbeats from connections of their own while the worker hands over."""

import pathlib
import subprocess
import tempfile
import time

from crowd import BATCH, LEASES, enlist, gather
from harness import SESSIONS, connect, one, percentile, pgbench_command

WAITERS = 100
TTL = 10  # seconds
RATE = 1_000  # heartbeats per second
BEAT = "SELECT count(*) FILTER (WHERE h.alive), max(h.expires_at) FROM {} AS s, eskit_lease.session_heartbeat(s.session) AS h"


def storm(report):
    for waited in (1_000, 10_000):
        strike(report, min(waited, SESSIONS))


def prepare(db, waited):
    """The sessions that are going to die, what they hold, and who waits for it. Nobody dies meanwhile."""
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
               CROSS JOIN LATERAL eskit_lease.lease_acquire(format('storm/%%s/%%s/1', %s::integer, i), w.session, true) AS l""",
            low, min(low + BATCH - 1, waited), WAITERS, waited)  # fmt: skip
        assert queued == min(BATCH, waited - low + 1), queued
        beat()
    db.execute("ANALYZE")


def until(db, sql, *values, within, every):
    """Polls until a count is zero; the time at which it was."""
    end = time.time() + within
    while one(db, sql, *values) != 0:
        if time.time() > end:
            return float("inf")
        time.sleep(every)
    return time.time()


def strike(report, waited):
    with connect() as db, tempfile.TemporaryDirectory() as logs:
        prepare(db, waited)
        alive, deadline = one(db, BEAT.format("storm_sessions"))
        assert alive == SESSIONS
        deadline = deadline.timestamp()
        command = pgbench_command("heartbeat_of_waiter", "--log", f"--log-prefix={logs}/log", f"--rate={RATE}",
                                  seconds=TTL + 60, waiters=WAITERS)  # fmt: skip
        others = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            began = time.time()
            time.sleep(max(0, deadline - time.time()))
            served = until(db, "SELECT count(*) FROM eskit_lease._waiters", within=30, every=0.02)
            swept = until(db, "SELECT count(*) FROM eskit_lease._sessions AS s JOIN storm_sessions USING (session)", within=30, every=0.2)
            time.sleep(0.5)
        finally:
            others.terminate()
            others.wait()
        held = one(db, """SELECT count(*) FROM eskit_lease._leases AS l JOIN storm_waiters AS w USING (session)
                          WHERE l.resource LIKE %s""", f"storm/{waited}/%")  # fmt: skip
        living, _ = one(db, BEAT.format("storm_waiters"))
        took = served - deadline
        report.check(f"expiry of {SESSIONS * LEASES:,} leases, {waited:,} waited for", f"handed over after {took:.2f} s", "<= 3 s",
                     took <= 3 and held == waited)  # fmt: skip
        report.add("  all rows of the dead swept (information)", f"after {swept - deadline:.2f} s")
        before, during = latencies(logs, began + 2, deadline), latencies(logs, deadline, min(swept, deadline + 30))
        shown = [f"p50 {percentile(v, 50):.2f} p99 {percentile(v, 99):.2f} ms" for v in (during, before)]
        # The shortest time to live is 1 s, and a heartbeat is due every third of it.
        harmless = living == WAITERS and percentile(during, 99) < 50
        report.add(f"  heartbeats of others, {living} of {WAITERS} alive", shown[0], f"before {shown[1]}",
                   f"max {max(during, default=0):.0f} ms", "< 50 ms", harmless)  # fmt: skip
        db.execute("SELECT eskit_lease.session_close(session) FROM storm_waiters")


def latencies(logs, begin, end):
    """Milliseconds of the transactions that ended in a stretch of time, counted from when they were due."""
    found = []
    for log in pathlib.Path(logs).iterdir():
        for line in log.read_text().splitlines():
            fields = line.split()
            if len(fields) >= 6 and begin <= int(fields[4]) + int(fields[5]) / 1e6 <= end:
                found.append(int(fields[2]) / 1_000)
    return found
