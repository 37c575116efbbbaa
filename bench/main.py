"""Runs the benchmarks, prints their table and keeps it, a file in bench/results for each part. Fails when a bound does not hold."""

import os
import sys

from bulk import bulk
from crowd import crowd
from fenced import fenced
from groups import cursors, groups, semaphores
from handover import handover
from harness import CLIENTS, HERE, KNOBS, REPEAT, ROOT, SECONDS, Report
from items import items
from rates import fence, grants, rates
from storm import storm

PARTS = {
    "rates": rates,
    "fence": fence,
    "fenced": fenced,
    "handover": handover,
    "grants": grants,
    "bulk": bulk,
    "storm": storm,
    "crowd": crowd,
    "groups": groups,
    "cursors": cursors,
    "semaphores": semaphores,
    "items": items,
}


def main(chosen):
    unknown = set(chosen) - set(PARTS)
    if unknown:
        raise SystemExit(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    before = round(os.getloadavg()[0], 1)
    print(f"median (least-most) of {REPEAT} interleaved repetitions of {SECONDS} s, {CLIENTS} connections, prepared statements; "
          f"load average before: {before}\n")
    # A try with another load is not worth keeping.
    results = ROOT / "target" / "bench" if any(name in os.environ for name in KNOBS) else HERE / "results"
    failed = []
    for name, part in PARTS.items():
        if not chosen or name in chosen:
            print(name)
            report = Report()
            part(report)
            report.save(results / f"{name}.json", before)
            failed += report.failed()
    print(f"\n{len(failed)} bounds missed" + "".join(f"\n  {what}" for what in failed) if failed else "\nall bounds hold")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
