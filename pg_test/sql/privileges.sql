-- The privileges of each kind of role.
\i pg_test/sql/include/helpers.psql
\pset null -
CREATE ROLE regress_nobody;
CREATE ROLE regress_consumer;
CREATE ROLE regress_member IN ROLE regress_consumer;
CREATE ROLE regress_other;
CREATE ROLE regress_monitor;
CREATE ROLE regress_without_inherit NOINHERIT IN ROLE regress_consumer;

-- PUBLIC may call the key functions, and nothing else.
CREATE TEMP VIEW may AS
SELECT r.rolname COLLATE "C" AS role, x.what COLLATE "C" AS what
FROM pg_roles AS r
CROSS JOIN LATERAL (
    SELECT p.proname || '()' AS what FROM pg_proc AS p
    WHERE p.pronamespace = 'eskit_lease'::regnamespace AND has_function_privilege(r.oid, p.oid, 'EXECUTE')
      AND p.proname NOT IN ('_open_transaction', '_count_held', '_count_items', '_refusals', 'help', 'lease_declare', 'lease_undeclare') -- which former versions lack: see refusals.sql
    UNION ALL
    SELECT c.relname || ' ' || string_agg(v.privilege, ' ' ORDER BY v.privilege)
    FROM pg_class AS c, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) AS v (privilege)
    WHERE c.relnamespace = 'eskit_lease'::regnamespace AND c.relkind IN ('r', 'v') AND has_table_privilege(r.oid, c.oid, v.privilege)
      AND c.relname NOT IN ('history', 'flapping', 'top', 'refusals', 'declared_names') -- which former versions lack: see history.sql, refusals.sql, declared_names.sql
    GROUP BY c.relname
    UNION ALL
    SELECT c.relname || ' ' || v.privilege
    FROM pg_class AS c, unnest(ARRAY['SELECT', 'USAGE', 'UPDATE']) AS v (privilege)
    WHERE c.relnamespace = 'eskit_lease'::regnamespace AND c.relkind = 'S' AND has_sequence_privilege(r.oid, c.oid, v.privilege)
    UNION ALL
    SELECT 'schema ' || v.privilege FROM unnest(ARRAY['CREATE', 'USAGE']) AS v (privilege) WHERE has_schema_privilege(r.oid, 'eskit_lease', v.privilege)) AS x
WHERE r.rolname LIKE 'regress\_%';
SELECT what FROM may WHERE role = 'regress_nobody' ORDER BY 1;

SELECT grant_consumer('regress_consumer'), grant_consumer('regress_other'), grant_monitor('regress_monitor');
-- Bridges are in refusals.sql, group_release_many in group_release.sql, session_wait_many and session_watch in the
-- end-to-end tests, as this file also runs over former versions, which had none of them.
SELECT what FROM may WHERE role = 'regress_consumer' AND what NOT LIKE 'bridge%' AND what NOT IN ('group_release_many()', 'session_wait_many()', 'session_watch()') EXCEPT SELECT what FROM may WHERE role = 'regress_nobody' ORDER BY 1;
SELECT what FROM may WHERE role = 'regress_monitor' AND what NOT LIKE 'bridge%' EXCEPT SELECT what FROM may WHERE role = 'regress_nobody' ORDER BY 1;

-- A role without grants is refused everything, and every role is refused functions for administrators.
CREATE FUNCTION pg_temp.attempt(statement text) RETURNS text LANGUAGE sql AS $$
    SELECT split_part(pg_temp.error_of(statement), E'\n', 1)
$$;
SET ROLE regress_nobody;
SELECT eskit_lease.group_lock_key('default'), eskit_lease.advisory_lock_id('sub:orders'), eskit_lease.partition_for('a', 1);
SELECT pg_temp.attempt(statement)
FROM unnest(ARRAY['SELECT session_open(''c'')', 'SELECT lease_renew(''r'', 1)', 'SELECT fence_check(''r'', 1)', 'SELECT * FROM stats()',
                  'SELECT position_next()', 'SELECT position_horizon()', 'SELECT * FROM position_blockers', 'SELECT nextval(''eskit_lease.position_high'')',
                  'SELECT * FROM sessions', 'SELECT * FROM leases', 'SELECT * FROM waiters', 'SELECT * FROM blockers', 'SELECT * FROM eskit_lease._sessions',
                  'SELECT nextval(''eskit_lease.fence_seq'')', 'CREATE TABLE eskit_lease.mine ()', 'SELECT grant_consumer(''regress_nobody'')']) AS statement;
SET ROLE regress_consumer;
SELECT pg_temp.attempt(statement)
FROM unnest(ARRAY['SELECT session_sweep()', 'SELECT lease_force_release(''r'', 1, ''why'')', 'SELECT execution_resolve(''k'', ''done'')', 'SELECT position_raise(1)', 'SELECT grant_consumer(''regress_nobody'')', 'SELECT * FROM sessions',
                  'SELECT * FROM stats()', 'SELECT * FROM eskit_lease._leases', 'DELETE FROM eskit_lease._leases', 'SELECT nextval(''eskit_lease.fence_seq'')']) AS statement;
SET ROLE regress_monitor;
SELECT pg_temp.attempt(statement)
FROM unnest(ARRAY['SELECT session_open(''c'')', 'SELECT session_sweep()', 'SELECT * FROM eskit_lease._sessions', 'SELECT * FROM eskit_lease._leases', 'SELECT * FROM eskit_lease._waiters',
                  'SELECT grant_monitor(''regress_nobody'')', 'SELECT count(*) FROM sessions']) AS statement;
RESET ROLE;

-- A consumer's session is for its role and the members of that role, by inheritance or SET ROLE.
SET ROLE regress_consumer;
SELECT session AS a FROM session_open('a', '1 hour') \gset
SELECT fence AS f FROM lease_acquire('r', :'a') \gset
SELECT fence_check('r', :f);
SET ROLE regress_member;
SELECT alive, reason FROM session_heartbeat(:'a');
SELECT granted, reason FROM lease_acquire('r', :'a');
SELECT held, reason FROM lease_renew('r', :f);
SELECT fence_check('r', :f);
SET ROLE regress_without_inherit;
SELECT pg_temp.attempt(format('SELECT session_heartbeat(%L)', :'a'));
SET ROLE regress_other;
SELECT session AS b FROM session_open('b', '1 hour') \gset
SELECT reason FROM lease_acquire('r', :'b', true);
SELECT pg_temp.attempt(format(statement, :'a', :f))
FROM unnest(ARRAY[
    'SELECT session_heartbeat(%1$L)', 'SELECT session_wait(%1$L, 0)', 'SELECT session_drain(%1$L)', 'SELECT session_detach(%1$L)', 'SELECT session_close(%1$L)',
    'SELECT lease_acquire(''x'', %1$L, true)', 'SELECT lease_acquire_many(''{r,x}'', %1$L)', 'SELECT lease_release_many(''{r}'', %1$L)', 'SELECT lease_cancel(''r'', %1$L)',
    'SELECT lease_renew(''r'', %2$s)', 'SELECT lease_release(''r'', %2$s)', 'SELECT fence_check(''r'', %2$s)']) AS statement;
-- A monitor reads who holds what, and sees the uuids of its own sessions only.
RESET ROLE;
GRANT regress_monitor TO regress_other;
SET ROLE regress_other;
SELECT consumer, role, state, leases, waiting_for, session = :'b' AS mine FROM sessions ORDER BY consumer;
SELECT resource, consumer, role, session, fence = :f AS fence, waiters FROM leases WHERE resource = 'r';
SELECT resource, consumer, session = :'b' AS mine, holder FROM waiters;
SET ROLE regress_monitor;
SELECT consumer, role, state, session FROM sessions ORDER BY consumer;
SELECT resource, consumer, session FROM leases WHERE resource = 'r';
SELECT resource, consumer, session FROM waiters;
SELECT count(*) FROM blockers;
SELECT value >= 2 AS counted FROM stats() WHERE name = 'sessions_alive';
RESET ROLE;
SELECT session = :'a' AS a, session = :'b' AS b FROM (SELECT :'a' AS session UNION SELECT :'b') AS s (session) ORDER BY 1;
SELECT count(session) FROM sessions;

-- Inside a user's SECURITY DEFINER function its owner counts as the caller; session_user does not matter.
CREATE SCHEMA regress_private;
GRANT CREATE, USAGE ON SCHEMA regress_private TO PUBLIC;
SET ROLE regress_consumer;
CREATE FUNCTION regress_private.beat(s uuid) RETURNS text LANGUAGE sql SECURITY DEFINER AS $$ SELECT reason FROM eskit_lease.session_heartbeat(s) $$;
CREATE FUNCTION regress_private.beat_as_caller(s uuid) RETURNS text LANGUAGE sql AS $$ SELECT reason FROM eskit_lease.session_heartbeat(s) $$;
CREATE FUNCTION regress_private.open() RETURNS uuid LANGUAGE sql SECURITY DEFINER AS $$ SELECT session FROM eskit_lease.session_open('definer', '1 hour') $$;
SET ROLE regress_nobody;
SELECT regress_private.beat(:'a');
SELECT pg_temp.attempt(format('SELECT regress_private.beat(%L)', :'b'));
SELECT pg_temp.attempt(format('SELECT regress_private.beat_as_caller(%L)', :'a'));
SELECT regress_private.open() AS d \gset
RESET ROLE;
SELECT consumer, role FROM sessions WHERE session = :'d';
SET ROLE regress_other;
SELECT pg_temp.attempt(format('SELECT regress_private.beat_as_caller(%L)', :'d'));
RESET ROLE;

-- The caller's own functions, operators, types and tables in front of PostgreSQL's gain and break nothing.
CREATE SCHEMA regress_hostile AUTHORIZATION regress_other;
SET ROLE regress_other;
CREATE FUNCTION regress_hostile.trap() RETURNS boolean LANGUAGE plpgsql AS $$BEGIN RAISE 'trapped as %', current_user; END$$;
CREATE FUNCTION regress_hostile.uuid_eq(uuid, uuid) RETURNS boolean LANGUAGE sql AS 'SELECT regress_hostile.trap()';
CREATE FUNCTION regress_hostile.text_eq(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT regress_hostile.trap()';
CREATE FUNCTION regress_hostile.int8_eq(bigint, bigint) RETURNS boolean LANGUAGE sql AS 'SELECT regress_hostile.trap()';
CREATE OPERATOR regress_hostile.= (LEFTARG = uuid, RIGHTARG = uuid, FUNCTION = regress_hostile.uuid_eq);
CREATE OPERATOR regress_hostile.= (LEFTARG = text, RIGHTARG = text, FUNCTION = regress_hostile.text_eq);
CREATE OPERATOR regress_hostile.= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = regress_hostile.int8_eq);
CREATE FUNCTION regress_hostile.nextval(regclass) RETURNS bigint LANGUAGE sql AS 'SELECT regress_hostile.trap()::int::bigint';
CREATE FUNCTION regress_hostile.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT NULL::timestamptz WHERE regress_hostile.trap()';
CREATE FUNCTION regress_hostile.unnest(text[]) RETURNS SETOF text LANGUAGE sql AS 'SELECT NULL::text WHERE regress_hostile.trap()';
CREATE FUNCTION regress_hostile.pg_has_role(oid, text) RETURNS boolean LANGUAGE sql AS 'SELECT true';
CREATE DOMAIN regress_hostile.uuid AS text;
CREATE TABLE regress_hostile._leases (resource text, slot int, session pg_catalog.uuid, fence bigint);
CREATE TABLE regress_hostile.pg_extension (extname text, extowner oid);
CREATE TEMP TABLE _sessions (session pg_catalog.uuid);
CREATE TEMP TABLE pg_class (oid oid);
SET search_path = regress_hostile, pg_temp, eskit_lease, pg_catalog;
SELECT session AS h FROM eskit_lease.session_open('hostile') \gset
SELECT granted, reason FROM eskit_lease.lease_acquire('h', :'h', true);
SELECT fence AS g FROM eskit_lease.lease_acquire('h', :'h') \gset
SELECT held, reason FROM eskit_lease.lease_renew('h', :g);
SELECT eskit_lease.fence_check('h', :g);
SELECT granted, reason FROM eskit_lease.lease_acquire_many('{h1,h2}', :'h');
SELECT released FROM eskit_lease.lease_release_many('{h1,h2}', :'h');
SELECT reason FROM eskit_lease.lease_acquire('r', :'h', true);
SELECT eskit_lease.lease_cancel('r', :'h');
SELECT granted, reason FROM eskit_lease.lock_acquire('lock', 'owner', '30 s');
SELECT alive, reason FROM eskit_lease.session_heartbeat(:'h');
SELECT count(*), count(session) FROM eskit_lease.sessions;
SELECT count(*), count(session) FROM eskit_lease.leases WHERE state OPERATOR(pg_catalog.=) 'held';
SELECT first, state FROM eskit_lease.execution_begin('hostile', :'h');
SELECT eskit_lease.execution_finish(key, fence, '1') FROM eskit_lease.executions;
SELECT state, result FROM eskit_lease.execution_begin('hostile', :'h');
SELECT eskit_lease.session_drain(:'h'), eskit_lease.session_close(:'h');
RESET search_path;
-- After a call the caller's role and settings are as before.
SELECT current_user, current_setting('search_path') AS search_path, current_setting('enable_seqscan') AS enable_seqscan;
RESET ROLE;
\c
\i pg_test/sql/include/helpers.psql
\pset null -

-- DROP OWNED revokes the grants. A dropped role's session ends by its TTL, or an administrator ends it.
SET ROLE regress_consumer;
SELECT session AS e FROM session_open('orphan', '1 hour') \gset
RESET ROLE;
DROP FUNCTION regress_private.beat, regress_private.beat_as_caller, regress_private.open;
DROP OWNED BY regress_consumer;
DROP ROLE regress_consumer;
SELECT consumer, role IS NULL OR role LIKE 'unknown (OID=%' AS "role is gone", state FROM sessions WHERE session = :'e';
SELECT regexp_replace(pg_temp.error_of(format('SELECT session_heartbeat(%L)', :'e')), 'role [0-9]+', 'role OID') AS orphan FROM (SELECT set_config('role', 'regress_other', true)) AS s;
SELECT alive, reason FROM session_heartbeat(:'e');
DELETE FROM eskit_lease._executions;
SELECT session_close(session) FROM sessions;
SELECT lease_force_release(resource, fence, 'test') FROM leases WHERE state = 'held';
DROP SCHEMA regress_private;
DROP OWNED BY regress_other, regress_monitor;
DROP ROLE regress_nobody, regress_member, regress_other, regress_monitor, regress_without_inherit;

-- CREATE EXTENSION refuses a schema of its name that exists already, with all that its owner may have put into it.
CREATE DATABASE eskit_privileges;
\c eskit_privileges
\i pg_test/sql/include/helpers.psql
\pset null -
CREATE SCHEMA eskit_lease;
\set SHOW_CONTEXT never
CREATE EXTENSION eskit_lease;
SELECT pg_temp.error_of('CREATE EXTENSION eskit_lease');
SELECT pg_temp.error_of('CREATE EXTENSION eskit_lease SCHEMA public');
SELECT count(*) FROM pg_extension WHERE extname = 'eskit_lease';
DROP SCHEMA eskit_lease;
CREATE EXTENSION eskit_lease;
SELECT pg_temp.error_of('ALTER EXTENSION eskit_lease SET SCHEMA public');

-- A dropped extension leaves nothing behind. Created again, it works in the same connection, and fences go on growing.
SELECT session AS a FROM session_open('a', '1 hour') \gset
SELECT fence AS f FROM lease_acquire('r', :'a') \gset
SELECT reason FROM lease_acquire('r', (SELECT session FROM session_open('b', '1 hour')), true);
DROP EXTENSION eskit_lease;
SELECT count(*) FROM pg_namespace WHERE nspname = 'eskit_lease';
SELECT (SELECT count(*) FROM pg_class WHERE oid >= 16384 AND relnamespace NOT IN (SELECT oid FROM pg_namespace WHERE nspname ~ '^pg_(toast_)?temp' OR nspname = 'pg_toast')) AS relations,
       (SELECT count(*) FROM pg_proc WHERE oid >= 16384 AND pronamespace NOT IN (SELECT oid FROM pg_namespace WHERE nspname ~ '^pg_temp')) AS functions,
       (SELECT count(*) FROM pg_type WHERE oid >= 16384 AND typnamespace NOT IN (SELECT oid FROM pg_namespace WHERE nspname ~ '^pg_(toast_)?temp' OR nspname = 'pg_toast')) AS types,
       (SELECT count(*) FROM pg_event_trigger) AS event_triggers,
       (SELECT count(*) FROM pg_shdepend WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database()) AND objid >= 16384
           AND classid <> 'pg_proc'::regclass AND classid <> 'pg_namespace'::regclass) AS dependencies;
CREATE EXTENSION eskit_lease;
SELECT alive, trust_ms, expires_at, revision, reason FROM session_heartbeat(:'a');
SELECT count(*) FROM sessions;
SELECT session AS b FROM session_open('b', '1 hour') \gset
SELECT granted, fence > :f AS greater, reason FROM lease_acquire('r', :'b');
SELECT granted, fence > :f AS greater, reason FROM lease_acquire('r', :'b');
BEGIN;
DROP EXTENSION eskit_lease;
ROLLBACK;
SELECT consumer, leases FROM sessions;
SELECT session_close(:'b');

\c regression
DROP DATABASE eskit_privileges;
