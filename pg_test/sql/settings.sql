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
