"""How long after a holder is gone the next in line learns, by session_wait, that it holds the lease: after the deadline
of a silent holder, by the clock of this machine, and after the kill of a client whose session is attached to its
connection."""

from drive import driver
from handover import told
from harness import ROUNDS, percentile, percentiles

# Pairs that run at the same time, so that a round does not take a TTL.
PAIRS = 20


def expiry(report):
    with driver(report) as driven:
        if driven is None:
            return
        late = driven.run("expiry", f"--rounds={ROUNDS}", f"--pairs={PAIRS}", seconds=1.5 * (ROUNDS // PAIRS + 1))["late"]
        crash = driven.run("crash", f"--rounds={ROUNDS}", seconds=0.1 * ROUNDS)["crash"]
        for percent, most in (50, 5), (99, 25):
            report.check(f"deadline until session_wait answers, p{percent}", told(late), f"<= {most} ms", percentile(late, percent) <= most)
        report.check("  the earliest", f"{min(late):.2f} ms", ">= 0 ms", min(late) >= 0)
        report.check("kill of an attached client until session_wait answers", told(crash), "p99 <= 30 ms", percentile(crash, 99) <= 30)
        data = {"after the deadline": percentiles(late), "after the kill": percentiles(crash)}
        report.chart("expiry", "distribution", "From the end of a holder until the next one holds", "percentile", "ms", data)
