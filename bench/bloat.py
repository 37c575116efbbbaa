"""How large tables and indexes get under ten minutes of mixed work, with and without an old snapshot. Two servers run
side by side at the same rate; in one of them a transaction was opened before the work began, and VACUUM removes nothing
there that this transaction could see."""

import statistics
import subprocess
import time

import psycopg

from cluster import cluster
from harness import number, one, pgbench_command

SECONDS = number("BENCH_BLOAT_SECONDS", 600)
RATE = number("BENCH_BLOAT_RATE", 150)  # rounds per second, on each server
EVERY = 10  # seconds
CLIENTS = 8
NAMES = 1_000  # names that are acquired over and over
SETUP = f"""
    CREATE TABLE clients (n integer PRIMARY KEY, session uuid NOT NULL);
    INSERT INTO clients SELECT n, s.session FROM generate_series(0, {CLIENTS - 1}) AS n, eskit_lease.session_open('client-' || n, '1 h') AS s;
    SELECT eskit_lease.queue_create('bloat');
    SELECT eskit_lease.group_create('bloat', {CLIENTS});
    SELECT eskit_lease.group_join('bloat', session) FROM clients;
"""
# The work of a consumer: it acquires one of the names or waits for it, releases it, commits its cursor, finishes an
# item, and heartbeats.
MIXED = f"""\\if not :ready
SELECT session FROM clients WHERE n = :client_id \\gset
SELECT a.partition, a.fence AS partition_fence, eskit_lease.cursor_position('bloat', a.partition) AS position
FROM eskit_lease.group_assignment('bloat', :session) AS a WHERE a.state = 'owned' LIMIT 1 \\gset
\\set ready true
\\endif
\\set name random(1, {NAMES})
\\set position :position + 1
SELECT coalesce(fence, 0) AS fence FROM eskit_lease.lease_acquire('bloat/' || :name, :session) \\gset
SELECT * FROM eskit_lease.session_heartbeat(:session);
SELECT eskit_lease.cursor_commit('bloat', :partition, :position, :partition_fence);
SELECT eskit_lease.item_add('bloat', '{{"to": "bob"}}');
SELECT array_agg(id) AS ids, coalesce(min(fence), 0) AS item_fence FROM eskit_lease.item_claim('bloat', :session) \\gset
SELECT eskit_lease.item_done(:ids, :item_fence);
SELECT eskit_lease.lease_release('bloat/' || :name, :fence);
SELECT session AS passing FROM eskit_lease.session_open('passing', '10 s') \\gset
SELECT * FROM eskit_lease.lease_acquire('bloat/held', :passing, true);
SELECT eskit_lease.session_close(:passing);
"""
# Megabytes of each table and of its indexes.
TABLES = """SELECT relname, pg_table_size(oid) / 1e6::float8, pg_indexes_size(oid) / 1e6::float8 FROM pg_class
            WHERE relnamespace = 'eskit_lease'::regnamespace AND relkind = 'r'"""


def bloat(report):
    # Two servers, as pages deleted from an index are not reused while a snapshot is open in any database of the server.
    with cluster("bloat", "synchronous_commit = off") as calm, cluster("bloat-held", "synchronous_commit = off") as held:
        servers = {"no old snapshot": calm, "old snapshot open": held}
        for server in servers.values():
            with server.connect() as db:
                db.execute(SETUP)
        with psycopg.connect(f"{held.address} dbname=postgres") as old:
            old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            old.execute("SELECT count(*) FROM clients")
            sizes = run(servers)
        counts = {}
        for label, server in servers.items():
            with server.connect() as db:
                counts[label] = one(db, "SELECT value FROM eskit_lease.stats() WHERE name = 'releases'")
    tell(report, sizes, counts)


def run(servers):
    """Returns the sizes of the tables over time, for each server."""
    sizes, loads = {label: [] for label in servers}, []
    for server in servers.values():
        command = pgbench_command("bloat", f"--rate={RATE}", clients=CLIENTS, seconds=SECONDS, text=MIXED)
        command[-1] = f"{server.address} dbname=postgres"
        loads.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    looks = {label: server.connect() for label, server in servers.items()}
    began = time.monotonic()
    while True:
        running = any(load.poll() is None for load in loads)
        for label, db in looks.items():
            sizes[label].append((round(time.monotonic() - began), {name: (table, index) for name, table, index in db.execute(TABLES).fetchall()}))
        if not running:
            break
        time.sleep(min(EVERY, max(1, SECONDS / 10)))
    for load in loads:
        said = load.communicate()[0]
        assert load.returncode == 0, said
    for db in looks.values():
        db.close()
    return sizes


def tell(report, sizes, counts):
    lines = {}
    for label, looks in sizes.items():
        for what, part in (("tables", 0), ("indexes", 1)):
            lines[f"{what}, {label}"] = [[at, [round(sum(size[part] for size in tables.values()), 3)]] for at, tables in looks]
    report.chart("bloat", "lines", "Tables and indexes under a mixed load", "seconds", "MB", lines)
    for label, looks in sizes.items():
        totals = [sum(map(sum, tables.values())) for _, tables in looks]
        # Autovacuum comes once a minute: from the middle on the free space suffices.
        settled, last = statistics.median(totals[len(totals) // 2 - 1 : len(totals) // 2 + 2]), totals[-1]
        bounded = label == "no old snapshot" and SECONDS >= 300
        report.add(f"{label}: {counts[label]:,} rounds", f"{last:.1f} MB", f"half way {settled:.1f} MB, first {totals[0]:.1f} MB", f"{last / settled:.2f}",
                   "<= 1.25" if bounded else "", last <= 1.25 * settled if bounded else None)  # fmt: skip
        for name, size in sorted(looks[-1][1].items(), key=lambda item: -sum(item[1]))[:6]:
            report.add(f"  {name}", f"{size[0]:.2f} MB + indexes {size[1]:.2f} MB")
