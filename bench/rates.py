"""Calls per second of 16 connections: heartbeats and refusals against SELECT 1; acquire and release against the same changes by
hand; a fenced transaction against the same without."""

from harness import CLIENTS, REPEAT, SECONDS, connect, interleave, one, pgbench, stats

XMAX = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"


def rates(report):
    """What reads and what beats: nothing here writes a row, but for the heartbeat by UPDATE."""
    with connect() as db:
        one(db, "SELECT l.granted FROM eskit_lease.session_open('holder', '1 h') AS s, eskit_lease.lease_acquire('bench/held', s.session) AS l")
        own = "SELECT count(*) FILTER (WHERE l.granted) FROM clients AS c, eskit_lease.lease_acquire('bench/own/' || c.n, c.session) AS l"
        assert one(db, own) >= CLIENTS
        xids = {"heartbeat": 0, "acquire_refused": 0}
        calls = dict.fromkeys(xids, 0.0)

        def without_xid(script):
            before = one(db, XMAX)
            tps = pgbench(script)
            xids[script] += one(db, XMAX) - before
            calls[script] += tps * SECONDS
            return tps

        values = interleave({
            "select_1": lambda: pgbench("select_1"),
            "heartbeat": lambda: without_xid("heartbeat"),
            "acquire_refused": lambda: without_xid("acquire_refused"),
            "acquire_again": lambda: pgbench("acquire_again"),
            "update": lambda: pgbench("heartbeat_by_update"),
        })  # fmt: skip
        base = values["select_1"]
        report.ratio("session_heartbeat", values["heartbeat"], "SELECT 1", base, at_least=0.7)
        report.ratio("heartbeat by UPDATE of a row (information)", values["update"], "SELECT 1", base)
        report.ratio("lease_acquire, refused", values["acquire_refused"], "SELECT 1", base, at_least=0.4)
        report.ratio("lease_acquire by the holder (information)", values["acquire_again"], "SELECT 1", base)
        for script, label in [("heartbeat", "session_heartbeat"), ("acquire_refused", "refused lease_acquire")]:
            # A worker or autovacuum may take a few meanwhile.
            used = f"{xids[script]:,} in {calls[script]:,.0f} calls"
            report.check(f"transaction ids of {label}", used, "~ 0", xids[script] <= calls[script] / 1_000)
        with db.transaction():
            reason = one(db, "SELECT l.reason FROM clients AS c, eskit_lease.lease_acquire('bench/held', c.session) AS l WHERE c.n = 0")
            assigned = one(db, "SELECT pg_current_xact_id_if_assigned()::text")
        report.check("transaction id in the transaction of a refusal", f"{assigned or 'none'} ({reason})", "none", assigned is None)


def grants(report):
    """A new name is acquired, and released: two transactions, each durable before it is answered."""
    with connect() as db:
        before = stats(db)
        pairs = 0.0

        def ours():
            nonlocal pairs
            tps = pgbench("grant")
            pairs += tps * SECONDS
            return tps

        values = interleave({"ours": ours, "by_hand": lambda: pgbench("grant_by_hand")})
        after = stats(db)
        grew = {name: after[name] - before[name] for name in ("grants", "releases", "refusals")}
        report.ratio("lease_acquire of a new name + lease_release", values["ours"], "INSERT + UPDATE", values["by_hand"], at_least=0.6)
        shown = ", ".join(f"{count:,} {name}" for name, count in grew.items())
        # What is refused as busy is asked again by a client: so many must not be.
        few = grew["refusals"] <= pairs / 1_000 and grew["releases"] == grew["grants"]
        report.check("what they answered", shown, "0 busy", few)


def fence(report):
    values = interleave({
        "plain": lambda: pgbench("work"),
        "fenced": lambda: pgbench("work_fenced"),
        "apart": lambda: pgbench("work_fenced_apart"),
    })  # fmt: skip
    report.ratio("fence_check with an INSERT, committed (information)", values["fenced"], "without", values["plain"])
    report.ratio("fence_check in a statement of its own (information)", values["apart"], "without", values["plain"])


def heartbeats_of(report, few, many, leases):
    """One heartbeat keeps all leases of a session: how many there are makes no difference."""
    values = interleave({
        "few": lambda: pgbench("heartbeat_of", of=few),
        "many": lambda: pgbench("heartbeat_of", of=many),
    }, REPEAT)  # fmt: skip
    report.ratio(f"session_heartbeat, {leases:,} leases", values["many"], "1 lease", values["few"], at_least=0.9)
