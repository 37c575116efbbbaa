-- Every refusal that raises, as a client sees it; it changes nothing. The worker is off, so that it does not write.
-- Refusals of groups, cursors, semaphores and executions are in their own files.
\i pg_test/sql/include/worker_off.psql
\pset format unaligned
\pset tuples_only on

\i pg_test/sql/include/refusals.psql

SELECT session AS a FROM session_open('a', '1 hour') \gset
SELECT session AS b FROM session_open('b', '1 hour') \gset
SELECT fence AS f FROM lease_acquire('r', :'a') \gset
SELECT reason FROM lease_acquire('r', :'b', true);

-- NULL: an error wherever it would look like an answer.
SELECT pg_temp.refused(
    'session_open(NULL)', 'session_open(''c'', attach => NULL)', 'session_open(''c'', attach_grace => NULL)',
    'session_open(''c'', takeover => NULL)', 'session_heartbeat(NULL)', 'session_wait(NULL, 0)', format('session_wait(%L, NULL)', :'a'),
    'session_drain(NULL)', 'session_detach(NULL)', 'session_close(NULL)', 'session_sweep(NULL)');
SELECT pg_temp.refused(
    format('lease_acquire(NULL, %L)', :'a'), 'lease_acquire(''r'', NULL)', format('lease_acquire(''r'', %L, NULL)', :'a'),
    format('lease_acquire_many(NULL, %L)', :'a'), 'lease_acquire_many(''{r}'', NULL)', format('lease_acquire_many(''{r,NULL}'', %L)', :'a'),
    format('lease_release_many(NULL, %L)', :'a'), 'lease_release_many(''{r}'', NULL)', format('lease_release_many(''{r,NULL}'', %L)', :'a'),
    format('lease_renew(NULL, %s)', :f), 'lease_renew(''r'', NULL)', format('lease_release(NULL, %s)', :f), 'lease_release(''r'', NULL)',
    format('lease_release(''r'', %s, NULL)', :f), format('lease_cancel(NULL, %L)', :'b'), 'lease_cancel(''r'', NULL)',
    format('lease_force_release(NULL, %s, ''why'')', :f), 'lease_force_release(''r'', NULL, ''why'')', format('lease_force_release(''r'', %s, NULL)', :f),
    'lock_acquire(NULL, ''o'', ''30 s'')', 'lock_acquire(''n'', NULL, ''30 s'')', 'lock_acquire(''n'', ''o'', NULL)',
    format('fence_check(NULL, %s)', :f), 'fence_check(''r'', NULL)', 'grant_consumer(NULL)', 'grant_monitor(NULL)');

-- Names of no bytes and of more than 255.
SELECT pg_temp.refused(
    'session_open('''')', 'session_open(repeat(''x'', 256))', 'session_open(repeat(''é'', 128))',
    format('lease_acquire('''', %L)', :'a'), format('lease_acquire(repeat(''x'', 256), %L)', :'a'), format('lease_acquire(repeat(''x'', 1048576), %L)', :'a'),
    format('lease_acquire_many(ARRAY[''ok'', ''''], %L)', :'a'), format('lease_acquire_many(ARRAY[repeat(''x'', 256)], %L)', :'a'),
    format('lease_release_many(ARRAY[''r'', ''''], %L)', :'a'),
    format('lease_renew('''', %s)', :f), format('lease_release('''', %s)', :f), format('lease_cancel('''', %L)', :'b'),
    format('lease_force_release('''', %s, ''why'')', :f), format('lease_force_release(''r'', %s, '''')', :f),
    'lock_acquire('''', ''o'', ''30 s'')', 'lock_acquire(''n'', '''', ''30 s'')', 'lock_acquire(''n'', repeat(''o'', 256), ''30 s'')',
    format('fence_check('''', %s)', :f));

-- Times to live below and above the limits, negative, huge; a millisecond within the limits is fine.
SELECT pg_temp.refused(
    'session_open(''c'', ''999 ms'')', 'session_open(''c'', ''1 hour 1 ms'')', 'session_open(''c'', ''0'')', 'session_open(''c'', ''-1 s'')',
    'session_open(''c'', ''1 month'')', 'session_open(''c'', ''178000000 years'')', 'session_open(''c'', ''-178000000 years'')',
    'session_open(''c'', ''1 month -30 days'')', 'session_open(''c'', ''999.999 ms'')',
    'lock_acquire(''n'', ''o'', ''999 ms'')', 'lock_acquire(''n'', ''o'', ''1 hour 1 ms'')', 'lock_acquire(''n'', ''o'', ''0'')', 'lock_acquire(''n'', ''o'', ''-1 s'')');
SELECT pg_temp.refused(
    'session_open(''c'', attach => true, attach_grace => ''-1 ms'')', 'session_open(''c'', attach => true, attach_grace => ''1 hour 1 ms'')',
    'session_open(''c'', attach_grace => ''178000000 years'')', 'session_open(''c'', attach_grace => ''5 s'')',
    format('lease_release(''r'', %s, ''-1 ms'')', :f), format('lease_release(''r'', %s, ''1 hour 1 ms'')', :f),
    format('lease_release(''r'', %s, ''178000000 years'')', :f),
    format('session_wait(%L, 0, ''-1 ms'')', :'a'), format('session_wait(%L, 0, ''178000000 years'')', :'a'));
-- Infinite intervals, which PostgreSQL has from 17 on.
SELECT left(pg_temp.error_of(format(statement, CASE WHEN current_setting('server_version_num')::int >= 170000
                                               THEN sign || 'infinity' ELSE sign || '178000000 years' END)), 5)
FROM unnest(ARRAY['SELECT session_open(''c'', %L)', 'SELECT session_open(''c'', attach_grace => %L)', 'SELECT lock_acquire(''n'', ''o'', %L)',
                  format('SELECT session_wait(%L, 0, %%L)', :'a'),
                  format('SELECT lease_release(''r'', %s, %%L)', :f)]) AS statement, unnest(ARRAY['', '-']) AS sign;
SELECT session_close(session) FROM unnest(ARRAY['1 s', '1 hour', '59 minutes 60 s']::interval[]) AS ttl, session_open('limits', ttl);
SET eskit_lease.default_ttl = '2h';
SELECT pg_temp.refused('session_open(''c'')');
RESET eskit_lease.default_ttl;

-- Numbers out of range.
SELECT pg_temp.refused(
    'partition_for(''k'', 0)', 'partition_for(''k'', -1)', 'session_sweep(0)', 'session_sweep(-1)', 'session_sweep(100001)',
    format('lease_acquire_many(ARRAY(SELECT ''n'' || i FROM generate_series(1, 100001) AS i), %L)', :'a'),
    format('lease_acquire_many(array_fill(''same''::text, ARRAY[100001]), %L)', :'a'),
    format('lease_release_many(ARRAY(SELECT ''n'' || i FROM generate_series(1, 100001) AS i), %L)', :'a'));

-- Fences that were never valid, or are no longer.
SELECT pg_temp.refused(
    format('fence_check(''r'', %s)', :f + 1), format('fence_check(''r'', %s)', :f - 1), format('fence_check(''other'', %s)', :f),
    'fence_check(''r'', 0)', 'fence_check(''r'', -1)');
SELECT lease_release(x.resource, x.fence) FROM lease_acquire_many('{released}', :'a') AS x;
SELECT pg_temp.refused(format('fence_check(''released'', %s)', fence)) FROM leases WHERE resource = 'released';

-- What does not exist gets an answer, not an error.
SELECT pg_temp.refused(
    'session_heartbeat(''00000000-0000-0000-0000-000000000000'')', 'session_wait(''00000000-0000-0000-0000-000000000000'', -1)',
    'session_drain(''00000000-0000-0000-0000-000000000000'')', 'session_detach(''00000000-0000-0000-0000-000000000000'')',
    'session_close(''00000000-0000-0000-0000-000000000000'')', 'lease_acquire(''r'', ''00000000-0000-0000-0000-000000000000'', true)',
    'lease_cancel(''r'', ''00000000-0000-0000-0000-000000000000'')', 'lease_release(''unknown'', 1)', 'lease_renew(''unknown'', 1)',
    'lease_force_release(''unknown'', 1, ''why'')');
-- Invalid uuids and roles.
SELECT pg_temp.refused('session_heartbeat(''a'')', 'grant_consumer(''regress_no_such_role'')', 'grant_monitor(4294967295)');

-- Another role's session, though its uuid is known. (Which roles may what: privileges.)
CREATE ROLE regress_stranger;
SELECT grant_consumer('regress_stranger'), grant_monitor('regress_stranger');
SET ROLE regress_stranger;
SELECT pg_temp.error_of(format(statement, :'a', :f))
FROM unnest(ARRAY[
    'SELECT eskit_lease.session_heartbeat(%1$L)', 'SELECT eskit_lease.session_wait(%1$L, 0)', 'SELECT eskit_lease.session_drain(%1$L)',
    'SELECT eskit_lease.session_detach(%1$L)', 'SELECT eskit_lease.session_close(%1$L)', 'SELECT eskit_lease.lease_acquire(''x'', %1$L, true)',
    'SELECT eskit_lease.lease_acquire_many(''{r,x}'', %1$L)', 'SELECT eskit_lease.lease_release_many(''{r}'', %1$L)',
    'SELECT eskit_lease.lease_cancel(''r'', %1$L)', 'SELECT eskit_lease.lease_renew(''r'', %2$s)', 'SELECT eskit_lease.lease_release(''r'', %2$s)',
    'SELECT eskit_lease.lease_release(''r'', %2$s, ''1 s'')', 'SELECT eskit_lease.fence_check(''r'', %2$s)']) AS statement;
RESET ROLE;
DROP OWNED BY regress_stranger;
DROP ROLE regress_stranger;
SELECT held, reason FROM lease_renew('r', :f);
SELECT resource, consumer FROM waiters;

-- A read-only transaction: heartbeats, waits, renewals, checks and refusals work; calls that write raise 25006.
BEGIN READ ONLY;
SELECT alive, reason FROM session_heartbeat(:'a');
SELECT alive, reason FROM session_wait(:'a', 0);
SELECT held, reason FROM lease_renew('r', :f);
SELECT fence_check('r', :f);
SELECT granted, reason FROM lease_acquire('r', :'a');
SELECT granted, reason FROM lease_acquire('r', :'b');
SELECT granted, reason FROM lease_acquire('r', '00000000-0000-4000-8000-000000000000');
SELECT resource, granted, reason FROM lease_acquire_many('{r}', :'a');
SELECT session_detach(:'a');
SELECT count(*) FROM sessions;
SELECT count(*) FROM leases WHERE resource = 'r';
SELECT count(*) FROM waiters;
SELECT pg_temp.refused(
    'session_open(''c'')', 'session_open(''a'', takeover => true)', format('session_drain(%L)', :'a'),
    format('session_close(%L)', :'a'), 'session_sweep()',
    format('lease_acquire(''new'', %L)', :'a'), format('lease_acquire(''new'', %L, true)', :'b'),
    format('lease_acquire_many(''{r,new}'', %L)', :'a'), format('lease_release_many(''{r}'', %L)', :'a'), format('lease_release(''r'', %s)', :f),
    format('lease_release(''r'', %s, ''1 s'')', :f), format('lease_cancel(''r'', %L)', :'b'),
    format('lease_force_release(''r'', %s, ''why'')', :f), 'lock_acquire(''n'', ''o'', ''30 s'')');
COMMIT;
SELECT session AS c FROM session_open('c', '1 hour') \gset
BEGIN READ ONLY;
SELECT pg_temp.refused(format('lease_acquire(''r'', %L, true)', :'c'));
COMMIT;

-- Settings out of their range, and unknown ones. (How the message shows the range differs between versions.)
SELECT regexp_replace(pg_temp.error_of(statement), ' \(.*\)', '')
FROM unnest(ARRAY[
    'SET eskit_lease.default_ttl = 99', 'SET eskit_lease.default_ttl = ''2d''', 'SET eskit_lease.default_ttl = ''soon''',
    'SET eskit_lease.no_such_setting = 1', 'SET eskit_lease.min_ttl = ''2 s''', 'SET eskit_lease.worker = off', 'SET eskit_lease.max_sessions = 100']) AS statement;
\set VERBOSITY sqlstate
ALTER SYSTEM SET eskit_lease.default_ttl = 99;
ALTER SYSTEM SET eskit_lease.min_ttl = '99 ms';
ALTER SYSTEM SET eskit_lease.max_ttl = '86400001 ms';
ALTER SYSTEM SET eskit_lease.max_sessions = 15;
ALTER SYSTEM SET eskit_lease.max_databases = 0;
ALTER SYSTEM SET eskit_lease.ring_size = 15;
ALTER SYSTEM SET eskit_lease.max_workers = 0;
ALTER SYSTEM SET eskit_lease.max_wait = 0;
ALTER SYSTEM SET eskit_lease.max_waiting = -2;
ALTER SYSTEM SET eskit_lease.row_retention = -1;
ALTER SYSTEM SET eskit_lease.execution_retention = -2;
ALTER SYSTEM SET eskit_lease.dead_item_retention = -2;
ALTER SYSTEM SET eskit_lease.worker = 'maybe';
\set VERBOSITY default

SELECT session_close(:'a'), session_close(:'b'), session_close(:'c');
SELECT count(*) FROM sessions;
\i pg_test/sql/include/worker_on.psql
