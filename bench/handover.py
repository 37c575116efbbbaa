"""How long after a release the next in line knows: from the call of lease_release to the answer of session_wait in another
connection, against a bare NOTIFY from one connection to another, and against a row that changes hands with a NOTIFY by hand."""

import threading
import time

from harness import connect, interleave, one, percentile, stats

ROUNDS = 200


def handover(report):
    with connect() as a, connect() as b, connect() as watch:
        b.execute("LISTEN bench")
        watch.execute("CREATE TABLE baton (n integer PRIMARY KEY, owner integer NOT NULL)")
        watch.execute("INSERT INTO baton VALUES (1, 0)")
        open_session = "SELECT session FROM eskit_lease.session_open('runner', '1 h')"
        ends = [(a, one(a, open_session)), (b, one(b, open_session))]

        def elapsed(wait, act, ready=lambda: None):
            arrived = []

            def receive():
                wait()
                arrived.append(time.monotonic())

            receiver = threading.Thread(target=receive)
            receiver.start()
            ready()
            start = time.monotonic()
            act()
            receiver.join()
            return (arrived[0] - start) * 1_000

        def waiting():
            while stats(watch)["calls_waiting"] == 0:
                time.sleep(0.0005)

        def lease():
            (holder, mine), (next_up, theirs) = ends
            fence = one(holder, "SELECT fence FROM eskit_lease.lease_acquire('baton', %s)", mine)
            assert one(next_up, "SELECT reason FROM eskit_lease.lease_acquire('baton', %s, true)", theirs) == "queued"
            revision = one(next_up, "SELECT revision FROM eskit_lease.session_heartbeat(%s)", theirs)

            def wait():
                answer = one(next_up, "SELECT reason FROM eskit_lease.session_wait(%s, %s, '5 s')", theirs, revision)
                assert answer == "changed", answer

            ends.reverse()
            return elapsed(wait, lambda: one(holder, "SELECT eskit_lease.lease_release('baton', %s)", fence), waiting)

        def listen():
            assert list(b.notifies(timeout=5, stop_after=1))

        def notify():
            return elapsed(listen, lambda: a.execute("NOTIFY bench"))

        def by_hand():
            def act():
                with a.transaction():
                    a.execute("UPDATE baton SET owner = owner + 1 WHERE n = 1")
                    a.execute("NOTIFY bench")

            return elapsed(listen, act)

        values = interleave({"lease": lease, "notify": notify, "by_hand": by_hand}, ROUNDS)
        text = {name: f"p50 {percentile(v, 50):.2f} p99 {percentile(v, 99):.2f} ms" for name, v in values.items()}
        p50, p99 = (percentile(values["lease"], p) for p in (50, 99))
        by = {name: f"{p50 / percentile(values[name], 50):.2f}" for name in values}
        report.add("lease_release until session_wait answers", text["lease"], f"NOTIFY {text['notify']}", by["notify"], "< 20 ms", p99 < 20)
        report.add("  the same", text["lease"], f"UPDATE, NOTIFY {text['by_hand']}", by["by_hand"])
