-- Leases are acquired, renewed, released and lost; alone, in bulk and with savepoints.
\i pg_test/sql/include/helpers.psql
\pset null -
SELECT session AS a FROM session_open('a', '1 hour') \gset
SELECT session AS b FROM session_open('b', '1 hour') \gset

SELECT * FROM pg_temp.ask('sub:orders', :'a');
SELECT * FROM pg_temp.ask('sub:orders', :'a');
SELECT * FROM pg_temp.ask('sub:orders', :'b');
SELECT fence AS f, trust_ms > 3500000 AS trusted FROM lease_acquire('sub:orders', :'a') \gset
-- The fence is above all that an earlier incarnation of the server can have granted, and exact in a double.
SELECT :'trusted' AS trusted, :f > (extract(epoch FROM now()) - 1735689600)::bigint << 22 AS "above the past", :f < 1::bigint << 53 AS exact;
SELECT resource, slot, state, consumer, session = :'a' AS mine, role, fence = :f AS fence, granted_at < clock_timestamp() AS granted,
       released_at, held_for < '1 minute' AS fresh, trust_ms > 0 AS trusted, expires_at > now() AS future, waiters
FROM leases WHERE resource = 'sub:orders';

SELECT held, trust_ms > 3500000 AS trusted, expires_at > now() AS future, reason FROM lease_renew('sub:orders', :f);
SELECT * FROM lease_renew('sub:orders', :f - 1);
SELECT * FROM lease_renew('sub:orders', :f + 1);
SELECT * FROM lease_renew('sub:nothing', :f);
SELECT fence_check('sub:orders', :f);
SELECT lease_release('sub:orders', :f + 1) AS newer, lease_release('sub:orders', :f - 1) AS older, lease_release('sub:nothing', :f) AS nothing;
SELECT lease_release('sub:orders', :f);
SELECT lease_release('sub:orders', :f) AS again;
SELECT * FROM lease_renew('sub:orders', :f);
-- The row stays for a while, with its last fence.
SELECT resource, state, consumer, session, role, fence = :f AS fence, released_at >= granted_at AS released,
       held_for = released_at - granted_at AS "held for", trust_ms, expires_at, waiters
FROM leases WHERE resource = 'sub:orders';

-- A change of owner gives a greater fence; the older fence is of no use.
SELECT granted, reason, fence > :f AS greater, fence AS g FROM lease_acquire('sub:orders', :'b') \gset
SELECT :'granted' AS granted, :'reason' AS reason, :'greater' AS greater;
SELECT * FROM lease_renew('sub:orders', :f);
SELECT lease_release('sub:orders', :f);
SELECT held, reason FROM lease_renew('sub:orders', :g);
SELECT lease_release('sub:orders', :g);
SELECT * FROM lease_renew('sub:orders', :f);
-- A new grant to the same session gives a greater fence too.
SELECT granted, reason, fence > :g AS greater FROM lease_acquire('sub:orders', :'b');

-- Names: any bytes, 1 to 255 of them, and case matters.
SELECT quote_literal(left(name, 8)) AS name, octet_length(name), granted FROM unnest(ARRAY[' ', 'A', 'a', E'\n', '''; --', repeat('x', 255)]) AS n (name), pg_temp.ask(name, :'a');
SELECT count(*), count(DISTINCT fence) FROM leases WHERE session = :'a' AND state = 'held';

-- A release by force, which needs a reason, by roles that were granted the function.
SELECT fence AS f FROM lease_acquire('A', :'a') \gset
SELECT lease_force_release('A', :f - 1, 'wrong fence') AS older, lease_force_release('A', :f, 'host is gone') AS released,
       lease_force_release('A', :f, 'host is gone') AS again;
SELECT held FROM lease_renew('A', :f);
SELECT alive, reason FROM session_heartbeat(:'a');

-- Many at once: a row for each distinct name, in order.
SELECT resource, granted, fence IS NOT NULL AS fenced, slot, holder, trust_ms > 0 AS trusted, reason
FROM lease_acquire_many('{m3,m1,m2,m1,m1}', :'a');
SELECT resource, granted, fence IS NOT NULL AS fenced, slot, holder, trust_ms > 0 AS trusted, reason
FROM lease_acquire_many(ARRAY['m0', 'm2', 'm4'], :'b');
SELECT count(DISTINCT fence) FROM leases WHERE resource ~ '^m[0-4]$';
SELECT resource, granted, reason FROM lease_acquire_many('{m1,m2}', :'a');
SELECT * FROM lease_acquire_many('{}', :'a');
SELECT * FROM lease_acquire_many('{m1}', '00000000-0000-4000-8000-000000000000');
SELECT resource, granted FROM lease_acquire_many('{{m5,m6},{m7,m8}}', :'a');
SELECT resource, granted FROM lease_acquire_many('[5:6]={m8,m9}', :'a');
SELECT * FROM lease_release_many('{m1,m4,m9,m0,m1,never}', :'a');
SELECT * FROM lease_release_many('{m1}', :'a');
SELECT * FROM lease_release_many('{}', :'a');
SELECT * FROM lease_release_many('{m0}', '00000000-0000-4000-8000-000000000000');
SELECT resource, state, consumer FROM leases WHERE resource ~ '^m[0-9]$' ORDER BY 1;
-- More than one batch, acquired and released.
SELECT reason, count(*), count(DISTINCT fence) AS fences
FROM lease_acquire_many(ARRAY(SELECT 'bulk-' || i FROM generate_series(1, 2500) AS i), :'a') GROUP BY 1;
SELECT reason, count(*), count(DISTINCT fence) AS fences
FROM lease_acquire_many(ARRAY(SELECT 'bulk-' || i FROM generate_series(2401, 2600) AS i), :'b') GROUP BY 1 ORDER BY 1;
SELECT released, count(*) FROM lease_release_many(ARRAY(SELECT 'bulk-' || i FROM generate_series(1, 2600) AS i), :'a') GROUP BY 1 ORDER BY 1;
SELECT state, count(*) FROM leases WHERE resource LIKE 'bulk-%' GROUP BY 1 ORDER BY 1;

-- Inside a transaction: a rollback undoes the grant; its fence may be skipped and is never granted again.
SELECT max(fence) AS highest FROM leases \gset
BEGIN;
SELECT granted, fence > :highest AS greater, fence AS f FROM lease_acquire('t1', :'a') \gset
SELECT :'granted' AS granted, :'greater' AS greater;
SELECT held, reason FROM lease_renew('t1', :f);
ROLLBACK;
SELECT * FROM lease_renew('t1', :f);
SELECT lease_release('t1', :f);
SELECT count(*) FROM leases WHERE resource = 't1';
SELECT granted, reason, fence > :f AS greater FROM lease_acquire('t1', :'b');

BEGIN;
SELECT granted FROM lease_acquire('t2', :'a');
SAVEPOINT s;
SELECT fence AS f FROM lease_acquire('t3', :'a') \gset
SELECT reason FROM lease_acquire('t3', :'b');
ROLLBACK TO s;
SELECT reason FROM lease_acquire('t3', :'b');
SAVEPOINT s;
SELECT count(*) FROM lease_acquire_many('{t4,t5}', :'a') WHERE granted;
ROLLBACK TO s;
SELECT resource, reason FROM lease_acquire_many('{t4,t5}', :'b');
COMMIT;
SELECT resource, consumer FROM leases WHERE resource ~ '^t[0-9]$' ORDER BY 1;

SELECT fence AS f FROM lease_acquire('t2', :'a') \gset
BEGIN;
SAVEPOINT s;
SELECT lease_release('t2', :f);
SELECT reason FROM lease_renew('t2', :f);
SELECT reason FROM lease_acquire('t2', :'b');
ROLLBACK TO s;
SELECT reason FROM lease_renew('t2', :f);
SELECT * FROM lease_release_many('{t2}', :'a');
ROLLBACK;
SELECT held, reason FROM lease_renew('t2', :f);
BEGIN;
SELECT lease_force_release('t2', :f, 'to be rolled back');
ROLLBACK;
SELECT held, reason FROM lease_renew('t2', :f);
-- Released and acquired again in one transaction: still a change of owner.
BEGIN;
SELECT lease_release('t2', :f);
SELECT reason, fence > :f AS greater FROM lease_acquire('t2', :'a');
COMMIT;
SELECT reason FROM lease_renew('t2', :f);

-- Many acquires in one statement, and in a block that fails.
SELECT count(*) FILTER (WHERE x.granted), count(DISTINCT x.fence) FROM generate_series(1, 50) AS i, lease_acquire('x' || i % 10, :'a') AS x;
DO $$
BEGIN
    PERFORM eskit_lease.lease_acquire('in a block', (SELECT session FROM eskit_lease.sessions WHERE consumer = 'a'));
    RAISE 'undone';
EXCEPTION WHEN OTHERS THEN
    RAISE NOTICE '%', SQLERRM;
END
$$;
SELECT count(*) FROM leases WHERE resource = 'in a block';

-- Under every isolation level.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT reason FROM lease_acquire('i1', :'a');
SELECT reason FROM lease_acquire('i1', :'b');
SELECT reason FROM lease_acquire('i1', :'a');
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT reason FROM lease_acquire('i2', :'a');
SELECT reason FROM lease_acquire('i2', :'b');
SELECT lease_release('i2', fence) FROM lease_acquire('i2', :'a');
SELECT reason FROM lease_acquire('i2', :'b');
COMMIT;
SELECT resource, state, consumer FROM leases WHERE resource IN ('i1', 'i2') ORDER BY 1;

-- The revision is that of before the look, so a wait on it misses no change since.
SELECT revision AS r FROM session_heartbeat(:'a') \gset
SELECT reason, revision = :r AS "of before" FROM lease_acquire('v', :'a');
SELECT revision > :r AS grown FROM session_heartbeat(:'a');
SELECT reason, revision > :r AS "the present one" FROM lease_acquire('v', :'a');
SELECT alive, reason FROM session_wait(:'a', :r, '1 hour');
SELECT reason, revision IS NOT NULL AS told FROM lease_acquire('v', :'b');
SELECT reason, revision FROM lease_acquire('v', '00000000-0000-4000-8000-000000000000');
SELECT reason, revision FROM lock_acquire('v', 'b', '30 s');

SELECT session_close(:'a'), session_close(:'b');
SELECT count(*) FROM leases WHERE state <> 'free';
