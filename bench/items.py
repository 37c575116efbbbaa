"""Work items are claimed and done, compared with the plainest table with FOR UPDATE SKIP LOCKED and with other queues:
alone, and beside an old snapshot, for which all items done since must be kept."""

import time

from harness import REPEAT, connect, interleave, number
from queues import GraphileWorker, Ours, Pgq, Plain
from services import Missing

# How old the snapshot is when the measurements begin, and how many items each queue has done meanwhile, evenly over that time.
SNAPSHOT_SECONDS = number("BENCH_SNAPSHOT_SECONDS", 480)
CHURN = number("BENCH_CHURN", 200_000)
SLICES = 20


def items(report):
    with connect() as db:
        ours, plain, peers = Ours(), Plain(), []
        for kind, name in [(GraphileWorker, "graphile-worker"), (Pgq, "pgq")]:
            try:
                peers.append(kind(db))
            except Missing as why:
                report.add(f"items against {name}", f"left out: {why}")

        def compare(where, repeat, peer_bounds):
            for batch in (1, 100):
                runs = {
                    "ours": (ours, "items"),
                    "plain": (plain, "items_by_hand"),
                    **{peer.name: (peer, peer.script) for peer in peers},
                    "ours at once": (ours, "items_at_once"),
                    "plain at once": (plain, "items_by_hand_at_once"),
                }
                values = interleave({
                    name: lambda queue=queue, script=script: queue.measure(db, script, batch) for name, (queue, script) in runs.items()
                }, repeat)  # fmt: skip
                what = f"items claimed, then done, {batch} at a time, {where}"
                report.ratio(what, values["ours"], "UPDATE, DELETE", values["plain"], at_least=1.0)
                for peer in peers:
                    report.ratio("  the same", values["ours"], peer.name, values[peer.name], at_least=peer_bounds.get(type(peer)))
                what = f"items claimed and done at once, {batch} at a time, {where}"
                report.ratio(what, values["ours at once"], "SELECT, DELETE", values["plain at once"], at_least=1.0)

        compare("idle", REPEAT, {})
        with connect() as old, old.transaction():
            old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            old.execute("SELECT 1 FROM plain_items LIMIT 1")
            since = time.monotonic()
            for n in range(1, SLICES + 1):
                for queue in (ours, plain, *peers):
                    queue.churn(db, CHURN // SLICES)
                time.sleep(max(0, since + SNAPSHOT_SECONDS * n / SLICES - time.monotonic()))
            age = time.monotonic() - since
            report.add("old snapshot", f"open for {age / 60:.1f} min", f"{CHURN:,} items through each queue meanwhile")
            compare("old snapshot", min(REPEAT, 3), {GraphileWorker: 1.0})
