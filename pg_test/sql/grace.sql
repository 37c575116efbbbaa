-- Grace: a lease that its session has released lives on alone for a while. The worker is off, so that what is seen is
-- the verbs' own doing.
\i pg_test/sql/include/worker_off.psql
\i pg_test/sql/include/refusals.psql
\pset null -
SELECT session AS a FROM session_open('a', '1 hour') \gset
SELECT session AS b FROM session_open('b', '1 hour') \gset
SELECT fence AS f FROM lease_acquire('g', :'a') \gset
SELECT granted_at AS granted FROM leases WHERE resource = 'g' \gset
SELECT revision AS r FROM session_heartbeat(:'a') \gset

-- The lease leaves its session; the views show it held, by the same consumer, under the same fence.
SELECT lease_release('g', :f, '1 hour');
SELECT revision > :r AS told FROM session_heartbeat(:'a');
SELECT consumer, private, leases, ttl_ms, trust_ms BETWEEN 3590000 AND 3600000 AS trusted
FROM sessions WHERE consumer IN ('a', 'b') ORDER BY private, consumer;
SELECT state, consumer, role = current_user AS role, session = :'a' AS "its own", fence = :f AS same, granted_at = :'granted' AS "since then",
       released_at, trust_ms BETWEEN 3590000 AND 3600000 AS trusted
FROM leases WHERE resource = 'g';
SELECT granted, holder, reason FROM lease_acquire('g', :'b');
SELECT resource, granted, holder, reason FROM lease_acquire_many('{g}', :'b');
SELECT granted, holder, reason FROM lock_acquire('g', 'a', '30 s');
-- The former holder may finish its work under the fence.
SELECT fence_check('g', :f);
SELECT held, trust_ms > 3590000 AS trusted, reason FROM lease_renew('g', :f);
BEGIN;
SELECT fence_check('g', :f);
SELECT doing, resource, consumer FROM blockers ORDER BY 1;
COMMIT;
-- The lease no longer belongs to the session.
SELECT * FROM lease_release_many('{g}', :'a');
SELECT state FROM leases WHERE resource = 'g';
-- Its session, and no other, takes it back under the same fence.
SELECT granted, fence = :f AS same, slot, holder, trust_ms > 3590000 AS trusted, reason FROM lease_acquire('g', :'a');
SELECT consumer, private, leases FROM sessions WHERE consumer IN ('a', 'b') ORDER BY private, consumer;
SELECT session = :'a' AS "its own", fence = :f AS same, granted_at = :'granted' AS "since then" FROM leases WHERE resource = 'g';
SELECT granted, fence = :f AS same, reason FROM lease_acquire('g', :'a');
SELECT fence_check('g', :f);
-- A bulk acquire takes the lease back as well.
SELECT lease_release('g', :f, '1 hour');
SELECT resource, granted, fence = :f AS same, reason FROM lease_acquire_many('{g,g2}', :'a');
SELECT count(*) FROM sessions WHERE private;
-- A second release, for good: it is free, and the private session is gone.
SELECT lease_release('g', :f, '1 hour');
SELECT lease_release('g', :f);
SELECT lease_release('g', :f) AS again, lease_release('g', :f, '1 hour') AS again;
SELECT held, reason FROM lease_renew('g', :f);
SELECT state, fence = :f AS same FROM leases WHERE resource = 'g';
SELECT count(*) FROM sessions WHERE private;
SELECT granted, fence > :f AS greater, reason FROM lease_acquire('g', :'a');
-- With waiters, the second release hands the lease to the first of them, and not earlier. No waiter comes before the
-- session that takes it back.
SELECT fence AS f FROM lease_acquire('g', :'a') \gset
SELECT reason FROM lease_acquire('g', :'b', true);
SELECT lease_release('g', :f, '1 hour');
SELECT consumer, waiters FROM leases WHERE resource = 'g';
SELECT position, consumer, holder FROM waiters;
SELECT reason FROM lease_acquire('g', :'b', true);
SELECT reason FROM lease_acquire('g', :'a');
SELECT lease_release('g', :f, '1 hour');
SELECT lease_release('g', :f);
SELECT consumer, waiters FROM leases WHERE resource = 'g';
SELECT reason FROM lease_acquire('g', :'a');
-- A release by force ends the grace, too.
SELECT fence AS f FROM lease_acquire('g', :'b') \gset
SELECT lease_release('g', :f, '1 hour');
SELECT lease_force_release('g', :f, 'test');
SELECT state FROM leases WHERE resource = 'g';
SELECT count(*) FROM sessions WHERE private;

-- The former holder is told whose grace it is, and later only what is still known.
SELECT fence AS f0 FROM lease_acquire('g', :'a') \gset
SELECT lease_release('g', :f0);
SELECT held, reason, holder FROM lease_renew('g', :f0);
SELECT fence AS f FROM lease_acquire('g', :'b') \gset
SELECT held, reason, holder FROM lease_renew('g', :f0);
SELECT lease_release('g', :f, '1 hour');
SELECT held, reason, holder FROM lease_renew('g', :f);
SELECT held, reason, holder FROM lease_renew('g', :f0);
SELECT pg_temp.error_of(format('SELECT fence_check(%L, %s)', 'g', :f0));
SELECT lease_release('g', :f);
SELECT held, reason, holder FROM lease_renew('g', :f0);

-- A grace that is rolled back, also to a savepoint, has changed nothing.
SELECT fence AS f FROM lease_acquire('g', :'a') \gset
BEGIN;
SAVEPOINT s;
SELECT lease_release('g', :f, '1 hour');
SELECT session = :'a' AS "its own" FROM leases WHERE resource = 'g';
ROLLBACK TO s;
SELECT session = :'a' AS "its own" FROM leases WHERE resource = 'g';
SELECT fence_check('g', :f);
SELECT lease_release('g', :f, '1 hour');
SELECT fence_check('g', :f);
ROLLBACK;
SELECT session = :'a' AS "its own" FROM leases WHERE resource = 'g';
SELECT count(*) FROM sessions WHERE private;
SELECT lease_release('g', :f, '1 hour');
BEGIN;
SELECT fence = :f AS same, reason FROM lease_acquire('g', :'a');
ROLLBACK;
SELECT session = :'a' AS "its own" FROM leases WHERE resource = 'g';
SELECT held, reason FROM lease_renew('g', :f);
BEGIN;
SELECT lease_release('g', :f);
ROLLBACK;
SELECT held, reason FROM lease_renew('g', :f);
-- Taken back and released with grace in one transaction, which is fenced throughout.
BEGIN;
SELECT fence_check('g', :f);
SELECT reason FROM lease_acquire('g', :'a');
SELECT fence_check('g', :f);
SELECT lease_release('g', :f, '1 hour');
SELECT fence_check('g', :f);
COMMIT;
SELECT held, reason FROM lease_renew('g', :f);
-- Under other isolation levels: taking the lease back does not make the grant newer.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT fence_check('g', :f);
SELECT reason FROM lease_acquire('g', :'a');
SELECT fence_check('g', :f);
SELECT lease_release('g', :f, '1 hour');
COMMIT;
SELECT held, reason FROM lease_renew('g', :f);

-- The grace lapses although the session lives, however often the lease is renewed or the session heartbeats.
SELECT lease_release('g', :f, '2 s');
SELECT held, trust_ms <= 2000 AS "two seconds at most", reason FROM lease_renew('g', :f);
DO $$
DECLARE
    mine uuid := (SELECT session FROM eskit_lease.sessions WHERE consumer = 'a' AND NOT private);
    mark bigint := (SELECT fence FROM eskit_lease.leases WHERE resource = 'g');
    renewed int := 0;
BEGIN
    FOR i IN 1..1000 LOOP
        PERFORM FROM eskit_lease.session_heartbeat(mine);
        EXIT WHEN NOT (SELECT held FROM eskit_lease.lease_renew('g', mark));
        renewed := renewed + 1;
        COMMIT;
        PERFORM pg_sleep(0.02);
    END LOOP;
    IF renewed < 2 THEN
        RAISE 'renewed only % times', renewed;
    END IF;
END
$$;
SELECT state FROM leases WHERE resource = 'g';
SELECT alive FROM session_heartbeat(:'a');
SELECT held, reason FROM lease_renew('g', :f);
SELECT pg_temp.error_of(format('SELECT fence_check(''g'', %s)', :f));
SELECT held, reason, holder FROM lease_renew('g', :f0);
SELECT pg_temp.error_of(format('SELECT fence_check(''g'', %s)', :f0));
SELECT lease_release('g', :f), lease_release('g', :f, '1 s');
-- It is too late to take the lease back. The next caller gets it anew, which may be the same session.
SELECT granted, fence > :f AS greater, reason FROM lease_acquire('g', :'a');

-- Grace upon grace: the last one counts, longer or shorter.
SELECT fence AS f FROM lease_acquire('g', :'a') \gset
SELECT lease_release('g', :f, '30 s'), lease_release('g', :f, '30 minutes');
SELECT trust_ms BETWEEN 1700000 AND 1800000 AS "half an hour" FROM leases WHERE resource = 'g';
SELECT count(*) FROM sessions WHERE private AND state = 'alive';
SELECT lease_release('g', :f, '1 minute');
SELECT trust_ms BETWEEN 50000 AND 60000 AS "a minute" FROM leases WHERE resource = 'g';
SELECT count(*) FROM sessions WHERE private AND state = 'alive';
SELECT fence = :f AS same, reason FROM lease_acquire('g', :'a');
SELECT count(*) FROM sessions WHERE private AND state = 'alive';
-- A second grace, after the lease was taken back, has its own length.
SELECT lease_release('g', :f, '2 minutes');
SELECT trust_ms BETWEEN 110000 AND 120000 AS "two minutes" FROM leases WHERE resource = 'g';
SELECT reason FROM lease_acquire('g', :'a');

-- Several leases of one session, each with its own grace.
SELECT fence AS f1 FROM lease_acquire('g1', :'a') \gset
SELECT fence AS f2 FROM lease_acquire('g2', :'a') \gset
SELECT lease_release('g1', :f1, '5 minutes'), lease_release('g2', :f2, '10 minutes');
SELECT resource, trust_ms BETWEEN 290000 AND 300000 AS "five minutes", trust_ms BETWEEN 590000 AND 600000 AS "ten minutes"
FROM leases WHERE resource IN ('g1', 'g2') ORDER BY 1;
-- The session is closed meanwhile: a lease in grace lives on, and no session takes it back.
SELECT session_close(:'a');
SELECT resource, state, consumer FROM leases WHERE resource IN ('g', 'g1', 'g2') ORDER BY 1;
SELECT fence_check('g1', :f1);
SELECT held, reason FROM lease_renew('g1', :f1);
SELECT reason IN ('expired', 'unknown_session') AS "has ended" FROM lease_acquire('g1', :'a');
SELECT session AS a FROM session_open('a', '1 hour') \gset
SELECT granted, holder, reason FROM lease_acquire('g1', :'a');
SELECT lease_release('g1', :f1), lease_release('g2', :f2);
SELECT count(*) FROM sessions WHERE private AND state = 'alive';
-- A draining session may release with grace and finish, but cannot take the lease back.
SELECT fence AS f FROM lease_acquire('g1', :'a') \gset
SELECT session_drain(:'a');
SELECT lease_release('g1', :f, '1 minute');
SELECT granted, reason FROM lease_acquire('g1', :'a');
SELECT fence_check('g1', :f);
SELECT lease_release('g1', :f);
SELECT session_close(:'a');
-- The same holds for a session that has expired.
SELECT session AS s FROM session_open('short', '1 s') \gset
SELECT fence AS f FROM lease_acquire('g1', :'s') \gset
SELECT lease_release('g1', :f, '1 minute');
CALL pg_temp.wait_for('state = ''expired'' FROM eskit_lease.sessions WHERE consumer = ''short'' AND NOT private');
SELECT state, consumer FROM leases WHERE resource = 'g1';
SELECT fence_check('g1', :f);
SELECT lease_release('g1', :f);
SELECT session AS a FROM session_open('a', '1 hour') \gset

-- The grace of a lock of lock_acquire: the caller takes it back by the request.
\set r1 '11111111-1111-4111-8111-111111111111'
SELECT fence AS f FROM lock_acquire('lock', 'host', '1 hour', :'r1') \gset
SELECT lease_release('lock', :f, '1 minute');
SELECT consumer, state, ttl_ms, leases FROM sessions WHERE private AND state = 'alive';
SELECT held, trust_ms BETWEEN 50000 AND 60000 AS "a minute", reason FROM lease_renew('lock', :f);
SELECT fence_check('lock', :f);
SELECT granted, holder, reason FROM lock_acquire('lock', 'host', '1 hour');
SELECT granted, fence = :f AS same, reason FROM lock_acquire('lock', 'host', '1 hour', :'r1');
SELECT lease_release('lock', :f);
SELECT count(*) FROM sessions WHERE private AND state = 'alive';
SELECT fence AS f FROM lock_acquire('lock', 'host', '1 hour') \gset
SELECT lease_release('lock', :f, '1 s');
CALL pg_temp.wait_for('state = ''expired'' FROM eskit_lease.leases WHERE resource = ''lock''');
SELECT held, reason FROM lease_renew('lock', :f);

-- A permit in grace counts as held: its session gets no second one.
SELECT semaphore_create('s', 2);
SELECT fence AS f, slot FROM lease_acquire('s', :'a') \gset
SELECT lease_release('s', :f, '1 hour');
SELECT permits, held FROM semaphores;
SELECT fence_check('s', :f);
SELECT held, reason FROM lease_renew('s', :f);
SELECT granted, fence = :f AS same, slot = :slot AS same, reason FROM lease_acquire('s', :'a');
SELECT permits, held FROM semaphores;
SELECT lease_release('s', :f, '1 hour');
SELECT granted FROM lease_acquire('s', :'b');
SELECT session AS c FROM session_open('c', '1 hour') \gset
SELECT reason FROM lease_acquire('s', :'c', true);
SELECT lease_release('s', :f);
SELECT reason FROM lease_acquire('s', :'c');
SELECT lease_release('s', fence, '1 s') FROM lease_acquire('s', :'c');
CALL pg_temp.wait_for('held = 1 FROM eskit_lease.semaphores');
SELECT reason FROM lease_acquire('s', :'a');

-- With the worker on, a lapsed lease goes to the first in line.
\i pg_test/sql/include/worker_on.psql
SELECT fence AS f FROM lease_acquire('g', :'a') \gset
SELECT reason FROM lease_acquire('g', :'b', true);
SELECT lease_release('g', :f, '1 s');
CALL pg_temp.wait_for('consumer = ''b'' FROM eskit_lease.leases WHERE resource = ''g''');
SELECT held, reason FROM lease_renew('g', :f);
SELECT alive FROM session_heartbeat(:'a');
CALL pg_temp.wait_for('count(*) = 0 FROM eskit_lease.sessions WHERE private');

-- Refused, and nothing has changed. (NULLs and limits: errors.)
\i pg_test/sql/include/worker_off.psql
\i pg_test/sql/include/refusals.psql
\pset format unaligned
\pset tuples_only on
SELECT fence AS f FROM lease_acquire('g', :'b') \gset
SELECT group_create('group', 1);
SELECT group_join('group', :'a') > 0 AS joined;
SELECT fence AS p FROM group_assignment('group', :'a') \gset
SELECT pg_temp.refused(
    format('lease_release(''group'', %s, ''1 s'')', :p), format('lease_release(''group'', %s, ''1 s'')', :p + 1),
    format('lease_release(''g'', %s, ''1 s'')', :f + 1), format('lease_release(''none'', %s, ''1 s'')', :f));
CREATE ROLE regress_grace;
SELECT grant_consumer('regress_grace');
SELECT lease_release('g', :f, '1 hour');
SET ROLE regress_grace;
SELECT pg_temp.error_of(format(statement, :f))
FROM unnest(ARRAY['SELECT eskit_lease.lease_release(''g'', %s, ''1 s'')', 'SELECT eskit_lease.lease_release(''g'', %s)',
                  'SELECT eskit_lease.lease_renew(''g'', %s)', 'SELECT eskit_lease.fence_check(''g'', %s)']) AS statement;
RESET ROLE;
-- The longest grace; one that rounds to zero is a release for good.
SELECT lease_release('g', :f, '1 hour'), lease_release('g', :f, '0.9 ms');
SELECT state FROM leases WHERE resource = 'g';
SELECT session_close(:'a'), session_close(:'b'), session_close(:'c');
SELECT group_drop('group');
SELECT semaphore_drop('s');
DROP OWNED BY regress_grace;
DROP ROLE regress_grace;
SELECT count(*) FROM sessions WHERE consumer IN ('a', 'b', 'c', 'short');
\i pg_test/sql/include/worker_on.psql
