"""One heartbeat keeps all that a session has: its cost as the leases held grow to a million, and compared with renewing
40,000 topics one by one, as an outbox reader with a row for each topic does."""

import statistics
import time

from cost import Meter
from harness import REPEAT, connect, number, one, pgbench
from wal import COUNTERS

MOST = number("BENCH_HEARTBEAT_LEASES", 1_000_000)
TOPICS = number("BENCH_TOPICS", 40_000)
CALLS = 50  # calls of a turn
BEATS = 2_000  # heartbeats of a run of pgbench
CHUNK = 100_000  # the most names of one call
RENEW = """\\set n :n + 1
UPDATE topics SET lease_until = clock_timestamp() + interval '1 h' WHERE topic = 'topic-' || :n AND owner = 'me';
"""


def heartbeats(report):
    with connect() as db, connect() as other:
        beats = against_leases(report, db, other)
        against_topics(report, db, beats)


def hold(db, session, leases):
    for low in range(1, leases + 1, CHUNK):
        high = min(low + CHUNK - 1, leases)
        granted = one(db, """SELECT count(*) FILTER (WHERE granted) FROM eskit_lease.lease_acquire_many(
                             ARRAY(SELECT format('beat/%%s/%%s', %s::text, n) FROM generate_series(%s::integer, %s) AS n), %s)""",
                      str(session), low, high, session)  # fmt: skip
        assert granted == high - low + 1, granted


def against_leases(report, db, other):
    """Sessions of all sizes exist at once, and are measured in turns."""
    meter = Meter(db, other)
    sizes = [10**n for n in range(7) if 10**n < MOST] + [MOST]
    sessions = {size: one(db, "SELECT session FROM eskit_lease.session_open(%s, '1 h')", f"beat-{size}") for size in sizes}
    for size, session in sessions.items():
        hold(other, session, size)
    found = {size: [] for size in sizes}
    for number_of_turn in range(1 + 4 * REPEAT):
        for size, session in sessions.items():

            def beat(_, session=session):
                return lambda _: db.execute("SELECT * FROM eskit_lease.session_heartbeat(%s)", (session,), prepare=True).fetchone()

            turn = meter.turn(beat, CALLS)
            if number_of_turn > 0:
                found[size].append(turn)
    few, many = found[sizes[0]], found[MOST]
    rates = [[1e6 / turn.waited for turn in turns] for turns in (many, few)]
    report.ratio(f"session_heartbeat, {MOST:,} leases, one client", rates[0], "1 lease", rates[1], at_least=0.9)
    report.ratio("  in processor time of the server", [1e6 / turn.cpu for turn in many], "1 lease", [1e6 / turn.cpu for turn in few], "/cpu s", at_least=0.9)
    lines = {"until answered": "waited", "processor time of the server": "cpu"}
    data = {label: [[size, [round(getattr(turn, what), 1) for turn in turns]] for size, turns in found.items()] for label, what in lines.items()}
    report.chart("heartbeat_leases", "lines", "One heartbeat against the leases that it keeps", "leases held", "µs", data)
    return sessions[MOST]


def against_topics(report, db, session):
    """Renews each topic in a transaction of its own, by a client that does nothing else, and compares a heartbeat that
    keeps more leases than that."""
    db.execute("DROP TABLE IF EXISTS topics")
    db.execute("CREATE TABLE topics (topic text PRIMARY KEY, owner text, fence bigint NOT NULL, lease_until timestamptz NOT NULL) WITH (fillfactor = 70)")
    db.execute("INSERT INTO topics SELECT 'topic-' || n, 'me', n, now() FROM generate_series(1, %s) AS n", (TOPICS,))
    db.execute("VACUUM ANALYZE topics")
    before = one(db, COUNTERS)
    seconds = TOPICS / pgbench("renew_topics", text=RENEW, clients=1, times=TOPICS, n=0)
    after = one(db, COUNTERS)
    assert one(db, "SELECT count(*) FROM topics WHERE lease_until > now()") == TOPICS
    theirs, xids = float(after[0] - before[0]), after[1] - before[1]
    # Otherwise autovacuum would write WAL about the topics during the next measurement.
    db.execute("VACUUM topics")
    time.sleep(1)
    times, wrote = [], []
    for _ in range(5):
        before = one(db, COUNTERS)[0]
        times.append(1 / pgbench("heartbeat_of", clients=1, times=BEATS, of=session))
        wrote.append(float(one(db, COUNTERS)[0] - before) / BEATS)
    beat, wrote = statistics.median(times), statistics.median(wrote)
    report.add(f"one heartbeat that keeps {MOST:,} leases", f"{beat * 1e6:,.0f} µs", f"{TOPICS:,} topics one by one {seconds:,.2f} s",
               f"{seconds / beat:,.0f}", ">= 2000", seconds / beat >= 2_000)  # fmt: skip
    # Another process may write a few bytes now and then; zero counts as one byte.
    ratio = theirs / max(wrote, 1)
    report.add("  in WAL", f"{wrote:,.2f} B", f"{theirs:,.0f} B, {xids:,} transaction ids", f"{ratio:,.0f}", ">= 2000", ratio >= 2_000)
