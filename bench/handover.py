"""How long after a release the next in line knows: from the call of lease_release to the answer of session_wait on
another connection. Compared with PostgreSQL's own ways to wake another connection, and with the mutex of etcd's
concurrency package, from the delete of its key until the next client, which watches the key, has confirmed that it is
first."""

from drive import driver
from harness import ROUNDS, percentile, percentiles

NAMES = {
    "eskit": "lease_release, session_wait",
    "notify": "NOTIFY",
    "notify_there_and_back": "NOTIFY there and back",
    "update_notify": "UPDATE with NOTIFY",
    "advisory": "advisory lock",
    "etcd": "etcd mutex",
}


def told(values):
    return f"p50 {percentile(values, 50):.2f} p99 {percentile(values, 99):.2f} ms"


def handover(report):
    with driver(report, ["etcd"]) as driven:
        if driven is None:
            return
        systems = driven.systems(NAMES)
        values = driven.run("handover", f"--rounds={ROUNDS}", *systems, seconds=0.2 * ROUNDS * len(systems))
        ours = values["eskit"]

        def compare(what, system, percent, against, bound="", holds=None):
            ratio = percentile(ours, percent) / percentile(values[system], against)
            report.add(what, told(ours), f"{NAMES[system]} {told(values[system])}", f"p{percent}/p{against} {ratio:.2f}",
                       bound, holds and holds(ratio))  # fmt: skip

        # A release is durable before the next holder learns of it, as an UPDATE with NOTIFY is; NOTIFY alone waits for
        # no disk.
        compare("lease_release until session_wait answers", "update_notify", 99, 99, "<= 2", lambda ratio: ratio <= 2)
        compare("  the same (information)", "notify_there_and_back", 99, 50)
        by_hand = percentile(values["update_notify"], 99) / percentile(values["notify_there_and_back"], 50)
        report.add("  UPDATE with NOTIFY (information)", told(values["update_notify"]),
                   f"{NAMES['notify_there_and_back']} {told(values['notify_there_and_back'])}", f"p99/p50 {by_hand:.2f}")  # fmt: skip
        for system in systems[1:]:
            if system != "etcd":
                compare("  the same", system, 50, 50)
                continue
            for percent in 50, 99:
                compare(f"  the same, ahead of etcd by p{percent}", "etcd", percent, percent, "< 1", lambda ratio: ratio < 1)
        data = {NAMES[system]: percentiles(values[system]) for system in systems}
        report.chart("handover", "distribution", "From the release until the next one knows", "percentile", "ms", data)
