"""An expiry storm: thousands of sessions die at one instant, with ten leases each. Living sessions wait for some of the leases, and
keep sending heartbeats from connections of their own while the worker hands over."""

import contextlib
import pathlib
import subprocess
import tempfile
import time

from crowd import BATCH, LEASES, enlist, gather
from harness import SESSIONS, connect, one, percentile, pgbench_command, stats

WAITERS = 100
TTL = 10  # seconds
RATE = 1_000  # heartbeats per second
BUSY = 4  # seconds
PATIENCE = 30  # seconds
BEAT = "SELECT count(*) FILTER (WHERE h.alive), max(h.expires_at) FROM {} AS s, eskit_lease.session_heartbeat(s.session) AS h"


def storm(report):
    for waited in (SESSIONS // 10, SESSIONS, SESSIONS * LEASES):
        strike(report, waited)


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
               CROSS JOIN LATERAL eskit_lease.lease_acquire(
                   format('storm/%%s/%%s/%%s', %s::integer, 1 + (i - 1) %% %s, 1 + (i - 1) / %s), w.session, true) AS l""",
            low, min(low + BATCH - 1, waited), WAITERS, waited, SESSIONS, SESSIONS)  # fmt: skip
        assert queued == min(BATCH, waited - low + 1), queued
        beat()
    db.execute("ANALYZE")


def until(db, counter, value, every):
    """Polls until a counter has a value; the time at which it had. A count of rows would take as much of the processors as what it counts."""
    end = time.time() + PATIENCE
    while one(db, "SELECT value FROM eskit_lease.stats() WHERE name = %s", counter) < value:
        if time.time() > end:
            return float("inf")
        time.sleep(every)
    return time.time()


@contextlib.contextmanager
def heartbeats(seconds):
    """Heartbeats of the waiters, from connections of their own; gives where their latencies are logged, to be read when they have ended."""
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


def strike(report, waited):
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
            before, during = latencies(logs, began + 2, deadline), latencies(logs, deadline, min(swept, deadline + PATIENCE))
        held = one(db, """SELECT count(*) FROM eskit_lease._leases AS l JOIN storm_waiters AS w USING (session)
                          WHERE l.resource LIKE %s""", f"storm/{waited}/%")  # fmt: skip
        living, _ = one(db, BEAT.format("storm_waiters"))
        took = served - deadline
        report.check(f"expiry of {SESSIONS * LEASES:,} leases, {waited:,} waited for", f"handed over after {took:.2f} s", "<= 2 s",
                     took <= 2 and held == waited)  # fmt: skip
        report.add("  all rows of the dead swept (information)", f"after {swept - deadline:.2f} s")
        tell(report, f"  heartbeats of others, {living} of {WAITERS} alive", before, during, living == WAITERS)
        if waited == SESSIONS * LEASES:
            beside_one_busy(report, db)
        db.execute("SELECT eskit_lease.session_close(session) FROM storm_waiters")


def beside_one_busy(report, db):
    """What a backend makes of heartbeats that writes as much as the worker does, in transactions as long, and nothing of ours."""
    db.execute("DROP TABLE IF EXISTS storm_plain; CREATE TABLE storm_plain (id integer PRIMARY KEY, n integer, owner uuid)")
    db.execute("INSERT INTO storm_plain SELECT i, 0 FROM generate_series(1, 100000) AS i; CREATE INDEX ON storm_plain (owner, id); ANALYZE storm_plain")
    with heartbeats(60) as end, connect() as busy:
        time.sleep(2)
        began = time.time()
        time.sleep(BUSY)
        since, low = time.time(), 1
        while time.time() < since + BUSY:
            busy.execute("UPDATE storm_plain SET n = n + 1, owner = gen_random_uuid() WHERE id BETWEEN %s AND %s", (low, low + 999))
            low = 1 + (low + 999) % 100_000
        until = time.time()
        logs = end()
        tell(report, "  heartbeats beside an UPDATE of 1,000 rows after the other (information)", latencies(logs, began, since), latencies(logs, since, until))
    assert one(db, BEAT.format("storm_waiters"))[0] == WAITERS


def tell(report, what, before, during, all_live=None):
    """The bound is for a storm: of what is told beside it there is none."""
    shown = [f"p50 {percentile(v, 50):.2f} p99 {percentile(v, 99):.2f} ms" for v in (during, before)]
    times = percentile(during, 99) / percentile(before, 99)
    told = f"p99 {times:.1f}, max {max(during, default=0):.0f} ms"
    bound = () if all_live is None else ("p99 <= 3", all_live and times <= 3)
    report.add(what, shown[0], f"before {shown[1]}", told, *bound)


def latencies(logs, begin, end):
    """Milliseconds of the transactions that ended in a stretch of time, counted from when they were due."""
    found = []
    for log in pathlib.Path(logs).iterdir():
        for line in log.read_text().splitlines():
            fields = line.split()
            if len(fields) >= 6 and begin <= int(fields[4]) + int(fields[5]) / 1e6 <= end:
                found.append(int(fields[2]) / 1_000)
    return found
