"""Runs the benchmarks, prints their table, keeps it in bench/results (a file for each part), and draws the charts.
Fails if a bound does not hold."""

import os
import subprocess
import sys

from adverse import adverse
from bloat import bloat
from bulk import bulk
from crowd import crowd
from elections import elections
from expiry import expiry
from fenced import fenced
from gauges import gauges
from groups import cursors, groups, semaphores
from growth import growth
from handover import handover
from harness import CLIENTS, HERE, KNOBS, REPEAT, REVISION, ROOT, SECONDS, Report
from heartbeats import heartbeats
from idle import idle
from items import items
from keeper import keeper
from keys import keys
from news import news
from peers import peers
from rates import fence, grants, rates
from sizes import sizes
from storm import storm
from wal import wal

PARTS = {
    "rates": rates,
    "peers": peers,
    "fence": fence,
    "fenced": fenced,
    "handover": handover,
    "keeper": keeper,
    "elections": elections,
    "news": news,
    "expiry": expiry,
    "grants": grants,
    "bulk": bulk,
    "storm": storm,
    "crowd": crowd,
    "groups": groups,
    "cursors": cursors,
    "semaphores": semaphores,
    "items": items,
    "keys": keys,
    "wal": wal,
    "heartbeats": heartbeats,
    "sizes": sizes,
    "growth": growth,
    "idle": idle,
    "bloat": bloat,
    "adverse": adverse,
    "gauges": gauges,
}


def main(chosen):
    unknown = set(chosen) - set(PARTS)
    if unknown:
        raise SystemExit(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    before = round(os.getloadavg()[0], 1)
    print(f"median (least-most) of {REPEAT} interleaved repetitions of {SECONDS} s, {CLIENTS} connections, prepared statements; "
          f"load average before: {before}\n")
    # Results of a trial with another load, or of changes that are in no commit, are not kept.
    is_trial = any(name in os.environ for name in KNOBS) or REVISION.endswith("-dirty")
    results = ROOT / "target" / "bench" if is_trial else HERE / "results"
    failed = []
    for name, part in PARTS.items():
        if not chosen or name in chosen:
            print(name)
            report = Report()
            try:
                part(report)
            except SystemExit as failure:
                # The part's result is not kept, and the other parts run all the same.
                print(failure)
                failed.append(f"{name}, which failed")
                continue
            report.save(results / f"{name}.json", before)
            failed += report.failed()
    if results == HERE / "results":
        subprocess.run([HERE / "plots"])
    print(f"\n{len(failed)} bounds missed" + "".join(f"\n  {what}" for what in failed) if failed else "\nall bounds hold")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
