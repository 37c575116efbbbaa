"""Calls per second of 16 connections: heartbeats and refusals compared with SELECT 1, acquire and release with the same
changes by hand, and a fenced transaction with the same one without a check."""

from harness import CLIENTS, REPEAT, SECONDS, connect, interleave, one, pgbench, stats

CROWD = 64  # connections that all want one name
XMAX = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"


def rates(report):
    """Reads and heartbeats: nothing here writes a row, except by hand."""
    with connect() as db:
        one(db, "SELECT l.granted FROM eskit_lease.session_open('holder', '1 h') AS s, eskit_lease.lease_acquire('bench/held', s.session) AS l")
        own = "SELECT count(*) FILTER (WHERE l.granted) FROM clients AS c, eskit_lease.lease_acquire('bench/own/' || c.n, c.session) AS l"
        assert one(db, own) >= CLIENTS
        ours = {"heartbeat": "session_heartbeat", "acquire_refused": "refused lease_acquire", "acquire_again": "lease_acquire by the holder"}
        xids, calls = dict.fromkeys(ours, 0), dict.fromkeys(ours, 0.0)

        def without_xid(script):
            before = one(db, XMAX)
            tps = pgbench(script)
            xids[script] += one(db, XMAX) - before
            calls[script] += tps * SECONDS
            return tps

        # Such a small difference needs more repetitions to stand out from the machine's noise.
        close = interleave({
            "select_1": lambda: pgbench("select_1"),
            "empty": lambda: pgbench("empty"),
            "heartbeat": lambda: without_xid("heartbeat"),
        }, 3 * REPEAT)  # fmt: skip
        report.ratio("session_heartbeat", close["heartbeat"], "an empty function in C", close["empty"], at_least=0.95)
        report.ratio("  the same", close["heartbeat"], "SELECT 1", close["select_1"], at_least=0.78)
        report.ratio("  an empty function in C (information)", close["empty"], "SELECT 1", close["select_1"])
        values = interleave({
            "select_1": lambda: pgbench("select_1"),
            "heartbeat": lambda: without_xid("heartbeat"),
            "acquire_refused": lambda: without_xid("acquire_refused"),
            "guarded": lambda: pgbench("refused_by_guarded_upsert"),
            "silent": lambda: pgbench("refused_without_a_word"),
            "acquire_again": lambda: without_xid("acquire_again"),
            "update": lambda: pgbench("heartbeat_by_update"),
        })  # fmt: skip
        base = values["select_1"]
        report.ratio("session_heartbeat, against an UPDATE", values["heartbeat"], "UPDATE of a row", values["update"], at_least=4.0)
        report.ratio("lease_acquire, refused", values["acquire_refused"], "SELECT 1", base, at_least=0.5)
        report.ratio("  the same", values["acquire_refused"], "guarded upsert by hand", values["guarded"], at_least=1.0)
        report.ratio("  the same (information)", values["acquire_refused"], "one that does not say who", values["silent"])
        report.ratio("lease_acquire by the holder", values["acquire_again"], "SELECT 1", base, at_least=0.5)
        for script, label in ours.items():
            # A worker or autovacuum may take a few transaction ids meanwhile.
            used = f"{xids[script]:,} in {calls[script]:,.0f} calls"
            report.check(f"transaction ids of {label}", used, "~ 0", xids[script] <= calls[script] / 1_000)
        crowded(report)


def crowded(report):
    """Many clients ask for one name that another session holds."""
    scripts = {
        "acquire_refused": "lease_acquire, refused",
        "refused_by_guarded_upsert": "  guarded upsert by hand (information)",
        "refused_by_upsert": "  plain upsert by hand (information)",
    }
    values = interleave({script: lambda script=script: pgbench(script, clients=CROWD) for script in ["select_1", *scripts]})
    for script, label in scripts.items():
        at_least = 0.5 if script == "acquire_refused" else None
        report.ratio(f"{label}, {CROWD} clients", values[script], "SELECT 1", values["select_1"], at_least=at_least)


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
        report.ratio("lease_acquire of a new name + lease_release", values["ours"], "INSERT + UPDATE", values["by_hand"], at_least=0.75)
        shown = ", ".join(f"{count:,} {name}" for name, count in grew.items())
        # A client asks again after `busy`; only few calls may be refused that way.
        few = grew["refusals"] <= pairs / 1_000 and grew["releases"] == grew["grants"]
        report.check("what they answered", shown, "0 busy", few)


def fence(report):
    with connect() as db:
        db.execute("INSERT INTO plain_locks SELECT 'bench/own/' || n, session, now() + interval '1 day' FROM clients ON CONFLICT DO NOTHING")
    scripts = {
        "work_fenced": "fence_check with an INSERT, committed",
        "work_fenced_apart": "  in a statement of its own (information)",
        "work_for_share": "  SELECT .. FOR SHARE by hand (information)",
        "work_empty": "  an empty function in C (information)",
    }
    values = interleave({script: lambda script=script: pgbench(script) for script in ["work", *scripts]})
    for script, label in scripts.items():
        at_least = 0.9 if script == "work_fenced" else None
        report.ratio(label, values[script], "without", values["work"], at_least=at_least)
    report.ratio("  fence_check (information)", values["work_fenced"], "an empty function", values["work_empty"])


def heartbeats_of(report, few, many, leases):
    """One heartbeat keeps all leases of a session; their number makes no difference."""
    values = interleave({
        "few": lambda: pgbench("heartbeat_of", of=few),
        "many": lambda: pgbench("heartbeat_of", of=many),
    }, REPEAT)  # fmt: skip
    report.ratio(f"session_heartbeat, {leases:,} leases", values["many"], "1 lease", values["few"], at_least=0.9)
