"""Many databases of one server take turns with the workers: how late is a hand-over from a dead session, which only a
worker makes?"""

import statistics
import threading
import time

from harness import one

PATIENCE = 15  # seconds
# As late as a TTL of a second, the shortest by default, would be.
LATE = 1_000  # ms
BUSY_EVERY = 0.4  # seconds


def connect(server, number):
    return server.connect("postgres" if number == 1 else f"tenant{number}")


def session(db, consumer, ttl):
    return one(db, "SELECT session FROM eskit_lease.session_open(%s, %s::interval)", consumer, ttl)


def expiry(db, name):
    """A holder expires while an heir waits. Returns the milliseconds from the holder's deadline to the hand-over,
    infinite if there is none."""
    heir, dying = session(db, "heir", "1 h"), session(db, "dying", "3 s")
    assert one(db, "SELECT granted FROM eskit_lease.lease_acquire(%s, %s)", name, dying)
    assert one(db, "SELECT reason FROM eskit_lease.lease_acquire(%s, %s, true)", name, heir) == "queued"
    revision, expires_at = one(db, """SELECT h.revision, d.expires_at FROM eskit_lease.session_heartbeat(%s) AS h,
                                      eskit_lease.session_heartbeat(%s) AS d""", heir, dying)  # fmt: skip
    deadline, late = expires_at.timestamp(), float("inf")
    # A session_wait that ends serves its session by itself. An heir that only heartbeats leaves the hand-over to the
    # worker.
    while time.time() < deadline + PATIENCE:
        if one(db, "SELECT revision FROM eskit_lease.session_heartbeat(%s)", heir) > revision:
            late = (time.time() - deadline) * 1_000
            break
        time.sleep(0.02)
    one(db, "SELECT eskit_lease.session_close(%s)", heir)
    return late


def at_once(server, databases):
    """Measures an expiry in each of the databases, all at about the same time."""
    late, ready = [], threading.Barrier(databases)

    def tenant(number):
        with connect(server, number) as db:
            ready.wait()
            late.append(expiry(db, f"expiry/{databases}"))

    threads = [threading.Thread(target=tenant, args=(number,)) for number in range(1, databases + 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return late


def beside_busy_ones(server):
    """Measures an expiry in one database, while as many others as there may be workers give a worker something to do a
    few times a second."""
    stop = threading.Event()

    def busy(number):
        with connect(server, number) as db:
            holder, waiter = session(db, "busy", "1 h"), session(db, "busy", "1 h")
            fence = one(db, "SELECT fence FROM eskit_lease.lease_acquire('busy', %s)", holder)
            while not stop.wait(BUSY_EVERY):
                one(db, "SELECT reason FROM eskit_lease.lease_acquire('busy', %s, true)", waiter)
                assert one(db, "SELECT eskit_lease.lease_release('busy', %s)", fence)
                holder, waiter = waiter, holder
                fence = one(db, "SELECT fence FROM eskit_lease.lease_acquire('busy', %s)", holder)

    with connect(server, 1) as db:
        workers = int(one(db, "SHOW eskit_lease.max_workers"))
        threads = [threading.Thread(target=busy, args=(2 + n,)) for n in range(workers)]
        for thread in threads:
            thread.start()
        time.sleep(2)
        late = expiry(db, "beside")
        stop.set()
        for thread in threads:
            thread.join()
    return workers, late


def tell(report, late, beside):
    lines = {"the last": [[n, [round(max(times))]] for n, times in late], "half": [[n, [round(statistics.median(times))]] for n, times in late]}
    report.chart("growth_expiries", "lines", "An expiry in each database at once", "databases", "hand-over, ms after the deadline", lines)
    for databases, times in late:
        report.add(f"an expiry in each of {databases} databases at once", f"half handed over after {statistics.median(times):,.0f} ms",
                   f"the last after {max(times):,.0f} ms", "", "<= 1 s", max(times) <= LATE)  # fmt: skip
    if beside:
        workers, ms = beside
        shown = f"handed over after {ms:,.0f} ms" if ms < float("inf") else f"not within {PATIENCE} s"
        report.check(f"an expiry beside {workers} busy databases", shown, "<= 1 s", ms <= LATE)
