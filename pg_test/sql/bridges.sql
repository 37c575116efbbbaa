-- Bridges to advisory locks: requests and refusals, by one connection. Old workers are in pg_test/specs/bridge.spec.
\i pg_test/sql/include/helpers.psql
\pset null -
CREATE ROLE regress_old;
CREATE ROLE regress_new;
CREATE ROLE regress_monitor;
SELECT grant_consumer('regress_new'), grant_monitor('regress_monitor');
CREATE VIEW pg_temp.locked AS
SELECT mode, count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted AND pid <> pg_backend_pid() GROUP BY 1 ORDER BY 1;
SELECT session AS a FROM session_open('a', '1 hour') \gset
SELECT session AS b FROM session_open('b', '1 hour') \gset

SELECT bridge_create('r', group_lock_key('default'));
SELECT resource, lock_key = group_lock_key('default') AS same, held, blocked_by, owner = current_user AS mine FROM bridges;
-- A call never grants the lease on the spot; the worker grants it to the first in line.
SELECT * FROM pg_temp.ask('r', :'a');
SELECT resource, granted, reason FROM lease_acquire_many('{r,plain}', :'a');
SELECT granted, fence, slot, holder, reason FROM lock_acquire('r', 'host', '30 s');
SELECT count(*) FROM sessions WHERE private;
SELECT * FROM pg_temp.locked;
SELECT * FROM pg_temp.ask('r', :'a', true);
CALL pg_temp.wait_for(format($$(SELECT reason = 'already_held' FROM pg_temp.ask('r', %L))$$, :'a'));
SELECT resource, held, blocked_by FROM bridges;
SELECT * FROM pg_temp.locked;
SELECT fence AS fa FROM lease_acquire('r', :'a', true) \gset
SELECT count(*) FROM waiters;
-- To its holder and to others it is a lease like any other.
BEGIN;
SELECT fence_check('r', :fa);
SELECT fence_check('r', :fa) AS again;
SELECT mode FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND pid = pg_backend_pid();
SAVEPOINT s;
ROLLBACK TO s;
COMMIT;
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND pid = pg_backend_pid();
SELECT held, reason FROM lease_renew('r', :fa);
SELECT granted, holder, reason FROM lease_acquire('r', :'b');
SELECT granted, holder, reason FROM lock_acquire('r', 'host', '30 s');
SELECT pg_temp.error_of('SELECT bridge_drop(''r'')');
-- Released: to the next in line, by the worker.
SELECT (pg_temp.ask('r', :'b', true)).reason;
SELECT lease_release('r', :fa);
CALL pg_temp.wait_for(format($$(SELECT reason = 'already_held' FROM pg_temp.ask('r', %L))$$, :'b'));
SELECT pg_temp.error_of(format('SELECT fence_check(''r'', %s)', :fa));
SELECT fence > :fa AS greater, fence AS fb FROM lease_acquire('r', :'b') \gset
-- A release with grace, taken back; a release by force; then no session holds the lease.
SELECT lease_release('r', :fb, '1 minute');
SELECT fence_check('r', :fb);
SELECT granted, fence = :fb AS same, reason FROM lease_acquire('r', :'b');
SELECT lease_force_release('r', :fb, 'test');
CALL pg_temp.wait_for('NOT EXISTS (SELECT FROM pg_temp.locked)');
SELECT * FROM pg_temp.ask('r', :'b');

-- The worker grants the lease to a successor; other waiters stay behind.
SELECT (pg_temp.ask('r', :'a', true)).reason;
CALL pg_temp.wait_for('held FROM eskit_lease.bridges');
SELECT (pg_temp.ask('r', :'b', true)).reason;
SELECT session AS heir FROM session_open('a', '1 hour', takeover => true) \gset
CALL pg_temp.wait_for(format($$(SELECT reason = 'already_held' FROM pg_temp.ask('r', %L))$$, :'heir'));
SELECT session_close(:'heir');
CALL pg_temp.wait_for(format($$(SELECT reason = 'already_held' FROM pg_temp.ask('r', %L))$$, :'b'));
-- When a holder expires, the worker releases the lock.
SELECT session AS short FROM session_open('short', '5 s') \gset
SELECT session_close(:'b');
SELECT (pg_temp.ask('r', :'short', true)).reason;
CALL pg_temp.wait_for('held FROM eskit_lease.bridges');
CALL pg_temp.wait_for('NOT held FROM eskit_lease.bridges');
SELECT count(*) FROM leases WHERE resource = 'r' AND state = 'held';
-- The same for a waiter that gives up its place. An administrator's sweep grants nothing.
SELECT session AS a FROM session_open('a', '1 hour') \gset
SELECT session AS b FROM session_open('b', '1 hour') \gset
BEGIN;
SELECT (pg_temp.ask('r', :'a', true)).reason;
SELECT handed_over FROM session_sweep();
SELECT lease_cancel('r', :'a');
COMMIT;

-- Two names are bridged to one lock.
SELECT bridge_create('s', group_lock_key('default'));
SELECT (pg_temp.ask('r', :'a', true)).reason, (pg_temp.ask('s', :'b', true)).reason;
CALL pg_temp.wait_for($$(SELECT count(*) = 2 FROM eskit_lease.leases WHERE state = 'held' AND resource IN ('r', 's'))$$);
SELECT * FROM pg_temp.locked;
SELECT lease_release('r', fence) FROM lease_acquire('r', :'a');
CALL pg_temp.wait_for(format($$(SELECT reason = 'bridged' FROM pg_temp.ask('r', %L))$$, :'a'));
SELECT * FROM pg_temp.locked;
SELECT lease_release('s', fence) FROM lease_acquire('s', :'b');
CALL pg_temp.wait_for('NOT EXISTS (SELECT FROM pg_temp.locked)');

-- Names that cannot be bridged, or dropped.
SELECT reason FROM lease_acquire('held', :'a');
SELECT (pg_temp.ask('held', :'b', true)).reason;
SELECT semaphore_create('sem', 1), group_create('g', 1);
SELECT statement, pg_temp.error_of('SELECT ' || statement)
FROM unnest(ARRAY['bridge_create(NULL, 1)', 'bridge_create(''x'', NULL)', 'bridge_create('''', 1)', 'bridge_create(repeat(''x'', 256), 1)', 'bridge_create(''r'', 1)',
                  'bridge_create(''held'', 1)', 'bridge_create(''sem'', 1)', 'bridge_create(''g'', 1)', 'semaphore_create(''r'', 1)', 'group_create(''r'', 1)',
                  'semaphore_resize(''r'', 2)', 'semaphore_drop(''r'')', 'group_drop(''r'')', 'queue_create(''q'', group_name => ''r'')',
                  'bridge_drop(''sem'')', 'bridge_drop(''g'')', 'bridge_drop(NULL)', 'bridge_drop('''')']) AS statement;
SELECT pg_temp.error_of('SELECT bridge_drop(''none'')') AS none, bridge_drop('held', missing_ok => true) AS plain;
SELECT lease_release('held', fence) FROM lease_acquire('held', :'a');
SELECT pg_temp.error_of('SELECT bridge_create(''held'', 1)');
SELECT lease_release('held', fence) FROM lease_acquire('held', :'b');
-- A bridge that was rolled back never existed.
BEGIN;
SELECT bridge_create('held', 1);
SELECT (pg_temp.ask('held', :'a')).reason;
ROLLBACK;
SELECT (pg_temp.ask('held', :'a')).reason;
BEGIN READ ONLY;
SELECT pg_temp.error_of('SELECT bridge_create(''x'', 1)'), pg_temp.error_of('SELECT bridge_drop(''r'')');
COMMIT;
-- The largest number of bridges.
BEGIN;
SELECT count(bridge_create('many ' || i, i)) FROM generate_series(3, 250) AS i;
SELECT pg_temp.error_of('SELECT bridge_create(''one more'', 1)');
SELECT bridge_drop('many 3');
SELECT bridge_create('one more', 1);
ROLLBACK;

-- Privileges: administrators, and roles that were granted the functions, each for its own bridges.
SET ROLE regress_new;
SELECT split_part(pg_temp.error_of(statement), E'\n', 1) FROM unnest(ARRAY['SELECT bridge_create(''mine'', 1)', 'SELECT bridge_drop(''r'')']) AS statement;
RESET ROLE;
GRANT EXECUTE ON FUNCTION bridge_create, bridge_drop TO regress_new;
SET ROLE regress_old;
SELECT split_part(pg_temp.error_of(statement), E'\n', 1)
FROM unnest(ARRAY['SELECT bridge_create(''mine'', 1)', 'SELECT bridge_drop(''r'')', 'SELECT * FROM bridges', 'SELECT * FROM eskit_lease._bridges']) AS statement;
SET ROLE regress_new;
SELECT bridge_create('mine', 42);
SELECT pg_temp.error_of('SELECT bridge_drop(''r'')');
SELECT split_part(pg_temp.error_of('SELECT * FROM eskit_lease._bridges'), E'\n', 1);
SET ROLE regress_monitor;
SELECT resource, held, owner = 'regress_new' AS new FROM bridges ORDER BY 1;
RESET ROLE;
SELECT bridge_drop('mine');

-- After the drop, the name is like any other.
SELECT bridge_drop('r'), bridge_drop('s');
SELECT count(*) FROM bridges;
SELECT granted, reason FROM lease_acquire('r', :'a');

SELECT semaphore_drop('sem'), group_drop('g');
SELECT session_close(session) FROM sessions;
DROP OWNED BY regress_old, regress_new, regress_monitor;
DROP ROLE regress_old, regress_new, regress_monitor;
