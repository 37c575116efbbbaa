-- Whatever the caller has set for its own statements, ours do what they do.
\i pg_test/sql/include/helpers.psql

-- Strings as they were read before the standard.
CREATE DATABASE regress_settings;
\c regress_settings
SET escape_string_warning = off;
SET standard_conforming_strings = off;
CREATE EXTENSION eskit_lease;
CREATE TABLE t (n int);
SELECT session AS a FROM eskit_lease.session_open('a') \gset
SELECT eskit_lease.group_create('g', 2);
SELECT eskit_lease.fence_table('t', 'g', 'n');
SELECT table_name, resource, partition_column FROM eskit_lease.fenced_tables;
SELECT first, state FROM eskit_lease.execution_begin('back\\slash', :'a');
SELECT key FROM eskit_lease.executions;
DROP EXTENSION eskit_lease CASCADE;
\c regression
DROP DATABASE regress_settings WITH (FORCE);

-- Plans are kept, so the first calls of a connection decide for all: they look rows up one by one, whatever else the caller has turned off.
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
