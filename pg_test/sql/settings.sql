-- The caller's settings do not change what our statements do.
\i pg_test/sql/include/helpers.psql

-- standard_conforming_strings = off, which PostgreSQL 19 refuses.
CREATE DATABASE regress_settings;
\c regress_settings
SELECT current_setting('server_version_num')::int < 190000 AS has_other_strings \gset
\if :has_other_strings
SET escape_string_warning = off;
SET standard_conforming_strings = off;
\endif
CREATE EXTENSION eskit_lease;
CREATE TABLE t (n int);
SELECT session AS a FROM eskit_lease.session_open('a') \gset
SELECT eskit_lease.group_create('g', 2);
SELECT eskit_lease.table_fence('t', 'g', 'n');
SELECT table_name, resource, partition_column FROM eskit_lease.fenced_tables;
SELECT first, state FROM eskit_lease.execution_begin(E'back\\slash', :'a');
SELECT key FROM eskit_lease.executions;
DROP EXTENSION eskit_lease CASCADE;
\c regression
DROP DATABASE regress_settings WITH (FORCE);

-- Plans are cached, so a connection's first calls decide them: they look rows up one by one, whatever the caller has
-- turned off.
\i pg_test/sql/include/worker_off.psql
\c -
\i pg_test/sql/include/helpers.psql
SET enable_indexscan = off;
SET enable_indexonlyscan = off;
SET enable_tidscan = off;
SET enable_nestloop = off;
BEGIN;
SELECT session AS a FROM session_open('a', '1 hour') \gset
SELECT session AS b FROM session_open('b', '1 hour') \gset
SELECT count(*) FROM lease_acquire_many(ARRAY(SELECT 'r' || i FROM generate_series(1, 100) AS i), :'a') WHERE granted;
SELECT reason FROM lease_acquire('r1', :'b', true);
SELECT count(*) FROM lease_release_many(ARRAY(SELECT 'r' || i FROM generate_series(1, 100) AS i), :'a') WHERE released;
SELECT fence AS f FROM lease_acquire('f', :'a') \gset
SELECT lease_release('f', :f);
SELECT fence AS f FROM execution_begin('k', :'a') \gset
SELECT execution_fail('k', :f, 'error', true);
SELECT fence AS f FROM execution_begin('k', :'a') \gset
SELECT execution_finish('k', :f);
SELECT session_close(:'a'), session_close(:'b');
SELECT relname, seq_scan FROM pg_stat_xact_user_tables WHERE schemaname = 'eskit_lease' AND seq_scan > 0 ORDER BY 1;
ROLLBACK;
SHOW enable_indexscan;
\i pg_test/sql/include/worker_on.psql

-- A server without synchronous standbys asks none: everything counts as confirmed, and no process is needed.
ALTER SYSTEM SET eskit_lease.confirm_interval = '100 ms';
SELECT pg_reload_conf();
CALL pg_temp.wait_for('(SELECT value < 10000 FROM stats() WHERE name = ''confirmed_ms_ago'')');
SELECT backend_type, datname FROM pg_stat_activity WHERE backend_type = 'eskit_lease confirmer';
SELECT session AS a, trust_ms > 3000000 AND trust_ms < 3600000 AS bounded FROM session_open('a', '1 hour') \gset
\echo :bounded
SELECT name FROM stats() WHERE value IS NULL;
-- The granting call does not vouch for the grant; a later answer does.
SELECT granted, trust_ms, reason FROM lease_acquire('r', :'a');
BEGIN;
SELECT granted, trust_ms, reason FROM lease_acquire('in a transaction', :'a');
SELECT granted, trust_ms, reason FROM lease_acquire('r', :'a');
SELECT alive, trust_ms, reason FROM session_heartbeat(:'a');
SELECT alive, trust_ms, reason FROM session_wait(:'a', 9007199254740993, '1 ms');
COMMIT;
SELECT granted, trust_ms, fence AS f, reason FROM lock_acquire('lock', 'a', '1 hour') \gset
\echo :granted :trust_ms :reason
CALL pg_temp.wait_for('(SELECT trust_ms > 3000000 AND reason = ''held'' FROM lease_renew(''lock'', ' || :f || '))');
CALL pg_temp.wait_for('(SELECT trust_ms > 3000000 AND reason = ''alive'' FROM session_heartbeat(' || quote_literal(:'a') || '))');
SELECT granted, trust_ms > 3000000 AS trusted, reason FROM lease_acquire('r', :'a');
SELECT count(*) FROM sessions WHERE trust_ms < 3600000 AND trust_ms > 3000000;
SELECT session_close(:'a'), lease_release('lock', :f);
ALTER SYSTEM RESET eskit_lease.confirm_interval;
SELECT pg_reload_conf();
CALL pg_temp.wait_for('NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = ''eskit_lease confirmer'')');
