"""The cost of calls that are repeated while a prepared transaction in another database is left open. That transaction
keeps every version of every row. Compared with the first of these calls under the same conditions."""

import time

from cluster import cluster
from harness import REPEAT, number, one

TIMES = number("BENCH_OLD_SNAPSHOT_TIMES", 20_000)  # calls of each kind
CALLS = 200  # in one measurement

# The statements of the n-th call, in PL/pgSQL; `had` is a fence.
KINDS = {
    "lease had and given back": """
        SELECT fence INTO had FROM eskit_lease.lease_acquire('lease', pg_temp.who('a'));
        ASSERT eskit_lease.lease_release('lease', had);""",
    "hand-over to one in line": """
        SELECT fence INTO had FROM eskit_lease.lease_acquire('line', pg_temp.who(CASE n % 2 WHEN 0 THEN 'a' ELSE 'b' END));
        PERFORM FROM eskit_lease.lease_acquire('line', pg_temp.who(CASE n % 2 WHEN 0 THEN 'b' ELSE 'a' END), true);
        ASSERT eskit_lease.lease_release('line', had);""",
    "one of 4 permits": """
        SELECT fence INTO had FROM eskit_lease.lease_acquire('few', pg_temp.who('a'));
        ASSERT eskit_lease.lease_release('few', had);""",
    "one of 100 permits": """
        SELECT fence INTO had FROM eskit_lease.lease_acquire('many', pg_temp.who('b'));
        ASSERT eskit_lease.lease_release('many', had);""",
    "permit of a resized semaphore": """
        PERFORM eskit_lease.semaphore_resize('few', 4 + n % 2);
        SELECT fence INTO had FROM eskit_lease.lease_acquire('few', pg_temp.who('a'));
        ASSERT eskit_lease.lease_release('few', had);""",
    "lease into grace and back": """
        SELECT fence INTO had FROM eskit_lease.lease_acquire('grace', pg_temp.who('c'));
        ASSERT eskit_lease.lease_release('grace', had, '1 hour');""",
    "lock_acquire and release": """
        SELECT fence INTO had FROM eskit_lease.lock_acquire('lock', 'owner', '1 min');
        ASSERT eskit_lease.lease_release('lock', had);""",
    "session with take-over": "PERFORM eskit_lease.session_open('again', '1 hour', takeover => true);",
    "member that joins and leaves": """
        PERFORM eskit_lease.group_join('members', pg_temp.who('b'));
        ASSERT eskit_lease.group_leave('members', pg_temp.who('b'));""",
    "session that joins and ends": """
        SELECT session INTO other FROM eskit_lease.session_open('d', '1 hour');
        PERFORM eskit_lease.group_join('sessions', other);
        ASSERT eskit_lease.session_close(other);""",
    "run-once key, tried again": """
        SELECT fence INTO had FROM eskit_lease.execution_begin('key', pg_temp.who('a'));
        ASSERT eskit_lease.execution_fail('key', had, 'not yet', true);""",
    "cursor_commit": """
        SELECT fence INTO had FROM eskit_lease.group_assignment('group', pg_temp.who('a'));
        ASSERT eskit_lease.cursor_commit('group', 0, n + 1, had);""",
    **{f"item, ordering {order}": f"""
        PERFORM eskit_lease.item_add('{order}', '{{}}', key => (n % 10)::text);
        SELECT eskit_lease.item_done(ARRAY[i.id], i.fence) INTO had FROM eskit_lease.item_claim('{order}', pg_temp.who('a')) AS i;
        ASSERT had = 1;""" for order in ("none", "key", "fifo")},
}  # fmt: skip


def old_snapshot(report):
    with cluster("old-snapshot", f"eskit_lease.max_sessions = {3 * TIMES + 10_000}") as server, server.connect() as db:
        server.create("other")
        db.execute("""CREATE TEMPORARY TABLE known AS
            SELECT n AS name, s.session FROM unnest(ARRAY['a', 'b', 'c']) AS n, eskit_lease.session_open(n, '1 hour') AS s""")
        db.execute("""CREATE FUNCTION pg_temp.who(text) RETURNS uuid LANGUAGE sql
            AS 'SELECT session FROM pg_temp.known WHERE name = $1'""")
        db.execute("SELECT eskit_lease.semaphore_create('few', 4), eskit_lease.semaphore_create('many', 100)")
        db.execute("SELECT eskit_lease.group_create('group', 1)")
        db.execute("SELECT eskit_lease.group_create('members', 4), eskit_lease.group_create('sessions', 4)")
        db.execute("SELECT eskit_lease.group_join(g, pg_temp.who('a')) FROM unnest(ARRAY['group', 'members', 'sessions']) AS g")
        while not one(db, "SELECT count(*) FROM eskit_lease.group_assignment('group', pg_temp.who('a')) WHERE state = 'owned'"):
            time.sleep(0.05)
        for order in ("none", "key", "fifo"):
            db.execute("SELECT eskit_lease.queue_create(%s, ordering => %s)", (order, order))
        with server.connect("other") as other:
            other.execute("BEGIN; SELECT pg_current_xact_id(); PREPARE TRANSACTION 'forgotten'")
            for what, body in KINDS.items():
                kind(report, db, what, body)
            other.execute("ROLLBACK PREPARED 'forgotten'")


def kind(report, db, what, body):
    db.execute(f"""CREATE OR REPLACE PROCEDURE pg_temp.again(first integer, times integer, INOUT ms float8 DEFAULT 0) LANGUAGE plpgsql AS $$
        DECLARE had bigint; other uuid; began timestamptz = clock_timestamp();
        BEGIN
            FOR n IN first..first + times - 1 LOOP {body} COMMIT; END LOOP;
            ms = extract(epoch FROM clock_timestamp() - began) * 1000 / times;
        END $$""")
    done = 0

    def again(times):
        nonlocal done
        ms = one(db, "CALL pg_temp.again(%s, %s)", done, times)
        done += times
        return ms

    again(20)
    few = [again(CALLS) for _ in range(REPEAT)]
    again(max(TIMES - done, 0))
    many = [again(CALLS) for _ in range(REPEAT)]
    report.ratio(f"{what}, after {TIMES:,} times", many, "at first", few, unit="ms", at_most=2)
