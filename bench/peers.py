"""Operations per second with the same number of connections to each: this extension, what people write by hand in
PostgreSQL, etcd and Redis. The same driver calls all, over TCP, with one operation in flight on each connection. A
system without such an operation is left out.

None of the others does quite the same. A key of etcd is as durable as a lease here, and replicated if there are more
servers. Redis loses what it has not synced, so it may grant a key twice. An advisory lock is stored nowhere, and ends
with its connection."""

from drive import driver
from harness import CLIENTS, REPEAT, SECONDS, THREADS

NAMES = {
    "eskit": "eskit_lease",
    "select": "SELECT 1",
    "update": "UPDATE, synchronous_commit on",
    "update_async": "UPDATE, synchronous_commit off",
    "by_hand": "INSERT .. ON CONFLICT, UPDATE",
    "outbox": "row lock, session, holder (as pgoutbox)",
    "advisory": "session advisory lock",
    "etcd": "etcd",
    "redis": "Redis, in memory",
    "redis_always": "Redis, appendfsync always",
}
SERVERS = ["etcd", "redis", "redis_always"]

# The operations: the name in our terms, the title of the chart, and the ratio to each other system that we must at
# least reach.
OPERATIONS = {
    "heartbeat": (
        "session_heartbeat",
        "A session is kept",
        # Over TCP most of the time is the client's own, so SELECT 1 sets the bound: no call can have a better ratio to
        # the others than SELECT 1.
        {"select": 0.8, "update": None, "update_async": None, "outbox": None, "etcd": None, "redis": None, "redis_always": None},
    ),
    "acquire_release": (
        "lease_acquire of a new name + lease_release",
        "A new name is acquired and released",
        {"by_hand": None, "outbox": None, "advisory": None, "etcd": 2.5, "redis": None, "redis_always": None},
    ),
    "reacquire": (
        "lease_acquire by the holder",
        "Who holds acquires again",
        {"outbox": 5.0, "redis": None, "redis_always": None},
    ),
}


def peers(report):
    with driver(report, SERVERS) as driven:
        if driven is None:
            return
        bars = {}
        for operation, (what, title, bounds) in OPERATIONS.items():
            systems = driven.systems(["eskit", *["eskit_socket"] * (operation == "heartbeat"), *bounds])
            load = [f"--connections={CLIENTS}", f"--threads={THREADS}", f"--turn={SECONDS * 1_000}", f"--turns={REPEAT}"]
            values = driven.run("turns", operation, *load, *systems, seconds=SECONDS * (REPEAT + 1) * len(systems))
            for system in [system for system in systems if system in bounds]:
                named = what if system == next(iter(bounds)) else "  the same"
                # Names the row in the message about a missed bound.
                named += f", against {system}" if bounds[system] else ""
                report.ratio(named, values["eskit"], NAMES[system], values[system], at_least=bounds[system])
            if "eskit_socket" in systems and "etcd" in systems:
                socket = values["eskit_socket"]
                report.ratio("  over the Unix socket (information)", socket, NAMES["etcd"], values["etcd"])
                report.ratio("  the same (information)", socket, NAMES["update"], values["update"])
            if "select" in systems and "etcd" in systems:
                report.ratio("  SELECT 1 (information)", values["select"], NAMES["etcd"], values["etcd"])
            bars[title] = {NAMES[system]: values[system] for system in systems if system in NAMES}
        title = f"Operations per second, {CLIENTS} connections to each"
        report.chart("peers", "bars", title, "", "per second", bars)
