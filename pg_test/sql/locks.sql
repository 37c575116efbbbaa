-- lock_acquire: a lease without a session of the caller's own, as in ShedLock.
\i pg_test/sql/include/helpers.psql
\pset null -
\set r1 '11111111-1111-4111-8111-111111111111'
\set r2 '22222222-2222-4222-8222-222222222222'

SELECT granted, slot, holder, trust_ms BETWEEN 29000 AND 30000 AS trusted, reason, fence AS f FROM lock_acquire('nightly', 'host-1', '30 s') \gset
SELECT :'granted' AS granted, :'slot' AS slot, :'holder' AS holder, :'trusted' AS trusted, :'reason' AS reason, :f > 0 AS fenced;
SELECT consumer, role, state, ttl_ms, private, leases FROM sessions;
SELECT resource, state, consumer FROM leases WHERE resource = 'nightly';
-- The lock is held, both for another owner and for the same one: only a call with the same request gets it again.
SELECT * FROM lock_acquire('nightly', 'host-2', '30 s');
SELECT * FROM lock_acquire('nightly', 'host-1', '30 s');
SELECT * FROM lock_acquire('nightly', 'host-1', '30 s', :'r1');
SELECT session AS a FROM session_open('with-session') \gset
SELECT * FROM pg_temp.ask('nightly', :'a');
SELECT count(*) FROM sessions WHERE private;

-- Renewed and released by name and fence; the private session goes with it.
SELECT held, trust_ms BETWEEN 29000 AND 30000 AS trusted, reason FROM lease_renew('nightly', :f);
SELECT fence_check('nightly', :f);
SELECT lease_release('nightly', :f);
SELECT lease_release('nightly', :f) AS again;
SELECT count(*) FROM sessions WHERE private;
SELECT held, reason FROM lease_renew('nightly', :f);

-- The same role, owner and request: the same fence, and another TTL. Anything else is held.
SELECT granted, reason, fence > :f AS greater, fence AS g FROM lock_acquire('nightly', 'host-1', '1 minute', :'r1') \gset
SELECT :'granted' AS granted, :'reason' AS reason, :'greater' AS greater;
SELECT granted, fence = :g AS same, slot, holder, trust_ms BETWEEN 59000 AND 60000 AS trusted, reason FROM lock_acquire('nightly', 'host-1', '1 minute', :'r1');
SELECT granted, reason FROM lock_acquire('nightly', 'host-1', '1 minute', :'r2');
SELECT granted, reason FROM lock_acquire('nightly', 'host-2', '1 minute', :'r1');
SELECT granted, reason FROM lock_acquire('nightly', 'host-1', '1 minute');
CREATE ROLE regress_lock_role;
GRANT regress_lock_role TO CURRENT_USER;
DO $$BEGIN PERFORM eskit_lease.grant_consumer('regress_lock_role'); END$$;
SET ROLE regress_lock_role;
SELECT granted, holder, reason FROM eskit_lease.lock_acquire('nightly', 'host-1', '1 minute', :'r1');
RESET ROLE;
-- The same request with another name is another lock.
SELECT granted, reason, fence > :g AS greater FROM lock_acquire('hourly', 'host-1', '1 minute', :'r1');
SELECT count(*) FROM sessions WHERE private;

-- A session holds the name, or is in line for it.
SELECT granted FROM pg_temp.ask('s', :'a');
SELECT * FROM lock_acquire('s', 'host-1', '30 s');
SELECT (pg_temp.ask('hourly', :'a', true)).reason;
SELECT lease_release('hourly', fence) FROM leases WHERE resource = 'hourly';
SELECT * FROM lock_acquire('hourly', 'host-1', '30 s', :'r1');
SELECT resource, consumer FROM leases WHERE resource = 'hourly';
SELECT lease_force_release('nightly', :g, 'test');
SELECT count(*) FROM sessions WHERE private;

-- A lock that is rolled back, also to a savepoint, and one released in the same transaction.
BEGIN;
SELECT granted FROM lock_acquire('t', 'host-1', '30 s');
ROLLBACK;
SELECT count(*) FROM sessions WHERE private;
BEGIN;
SAVEPOINT s;
SELECT granted, fence AS f FROM lock_acquire('t', 'host-1', '30 s') \gset
ROLLBACK TO s;
SELECT granted, fence > :f AS greater, fence AS f FROM lock_acquire('t', 'host-2', '30 s') \gset
SELECT :'granted' AS granted, :'greater' AS greater;
COMMIT;
SELECT consumer, private FROM sessions WHERE private;
BEGIN;
SELECT lease_release('t', :f);
ROLLBACK;
SELECT held, reason FROM lease_renew('t', :f);
BEGIN;
SELECT lease_release('t', :f);
SELECT granted, reason FROM lock_acquire('t', 'host-3', '30 s', :'r2');
COMMIT;
SELECT consumer, private FROM sessions WHERE private;
SELECT granted, reason FROM lock_acquire('t', 'host-3', '30 s', :'r2');
SELECT lease_release('t', fence) FROM leases WHERE resource = 't';
SELECT session_close(:'a');

-- The private session of a lock cannot be used as a session: it has its one lease only.
SELECT group_create('lock_group', 1), queue_create('lock_queue');
SELECT fence AS f FROM lock_acquire('private', 'host-1', '30 s') \gset
SELECT session AS s FROM sessions WHERE private \gset
SELECT alive, reason FROM session_heartbeat(:'s');
SELECT alive, reason FROM session_wait(:'s', 0);
SELECT session_drain(:'s'), session_detach(:'s');
SELECT granted, reason FROM lease_acquire('other', :'s');
SELECT granted, reason FROM lease_acquire('other', :'s', queue => true);
SELECT granted, reason FROM lease_acquire_many(ARRAY['other', 'private'], :'s');
SELECT released FROM lease_release_many(ARRAY['private'], :'s');
SELECT lease_cancel('private', :'s');
\set VERBOSITY sqlstate
SELECT group_join('lock_group', :'s');
SELECT * FROM group_assignment('lock_group', :'s');
SELECT group_leave('lock_group', :'s');
SELECT * FROM item_claim('lock_queue', :'s');
SELECT first, state FROM execution_begin('lock_key', :'s');
\set VERBOSITY default
SELECT held, reason FROM lease_renew('private', :f);
SELECT fence_check('private', :f);
-- The private session may be closed, which releases that lease.
SELECT session_close(:'s'), lease_release('private', :f);
SELECT group_drop('lock_group'), queue_drop('lock_queue');

-- Once a lock has expired, the next owner takes it on the spot.
\i pg_test/sql/include/worker_off.psql
SELECT granted, fence AS f FROM lock_acquire('short', 'host-1', '1 s') \gset
CALL pg_temp.wait_for('state = ''expired'' FROM eskit_lease.leases WHERE resource = ''short''');
SELECT held, reason FROM lease_renew('short', :f);
SELECT lease_release('short', :f);
SELECT granted, holder, reason, fence > :f AS greater FROM lock_acquire('short', 'host-2', '30 s');
SELECT held, reason FROM lease_renew('short', :f);
SELECT * FROM session_sweep();
SELECT consumer, state FROM sessions;
SELECT lease_release('short', fence) FROM leases WHERE resource = 'short';
SELECT count(*) FROM sessions;
DROP OWNED BY regress_lock_role;
DROP ROLE regress_lock_role;
\i pg_test/sql/include/worker_on.psql
