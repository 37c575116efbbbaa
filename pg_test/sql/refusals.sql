-- What each role is refused. The functions, views, tables, sequences and types come from the catalog, so a new one is a
-- new row here, to decide on. The test tries what a role may do instead of reading its privileges.
\i pg_test/sql/include/helpers.psql
\pset null -
\pset format unaligned
CREATE ROLE regress_public;
CREATE ROLE regress_consumer;
CREATE ROLE regress_thief;
CREATE ROLE regress_monitor;
CREATE ROLE regress_admin;
SELECT grant_consumer('regress_consumer'), grant_consumer('regress_thief'), grant_monitor('regress_monitor');
GRANT EXECUTE ON FUNCTION session_sweep, lease_force_release, execution_resolve, position_raise TO regress_admin;

-- Returns what a statement raises for a role, and undoes what it did.
CREATE FUNCTION pg_temp.raises(role text, statement text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('role', role, true);
    EXECUTE statement;
    RAISE 'undone' USING ERRCODE = 'ZZ000';
EXCEPTION WHEN OTHERS THEN
    RETURN nullif(SQLSTATE, 'ZZ000') || ': ' || SQLERRM;
END
$$;
CREATE FUNCTION pg_temp.tried(role text, statement text) RETURNS text LANGUAGE sql AS $$
    SELECT CASE WHEN pg_temp.raises(role, statement) LIKE '42501: permission denied for %' THEN '-' ELSE 'yes' END
$$;
CREATE TEMP VIEW functions AS
SELECT p.oid, p.proname COLLATE "C" AS function, p.proargnames[:p.pronargs] AS names,
       -- Subqueries, as a strict function is not called at all for constant NULLs.
       format('SELECT * FROM eskit_lease.%I(%s)', p.proname, (SELECT string_agg(format('(SELECT NULL::%s)', format_type(type, NULL)), ', ' ORDER BY n)
                                                               FROM unnest(p.proargtypes) WITH ORDINALITY AS a (type, n))) AS call
FROM pg_proc AS p
WHERE p.pronamespace = 'eskit_lease'::regnamespace;

-- Functions: each role calls each of them, with only NULLs.
SET client_min_messages = error; -- former names warn, in no order
CREATE TEMP TABLE calls AS
SELECT f.oid, f.function, r.role, pg_temp.tried('regress_' || r.role, f.call) AS tried
FROM functions AS f, unnest(ARRAY['public', 'consumer', 'monitor', 'admin']) AS r (role);
RESET client_min_messages;
SELECT function, max(tried) FILTER (WHERE role = 'public') AS public, max(tried) FILTER (WHERE role = 'consumer') AS consumer,
       max(tried) FILTER (WHERE role = 'monitor') AS monitor, max(tried) FILTER (WHERE role = 'admin') AS admin
FROM calls GROUP BY function ORDER BY function;
SELECT function, role FROM calls WHERE has_function_privilege('regress_' || role, oid, 'EXECUTE') <> (tried = 'yes');

-- Views, tables and sequences: read; written in any way; locked.
CREATE TEMP TABLE uses AS
SELECT c.relkind, c.relname COLLATE "C" AS relation, r.role, u.use, pg_temp.tried('regress_' || r.role, format(u.statement, c.relname, a.attname)) = 'yes' AS may
FROM pg_class AS c
LEFT JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = least(2, c.relnatts)
JOIN (VALUES ('vr', 'reads', 'TABLE eskit_lease.%I LIMIT 0'), ('r', 'inserts', 'INSERT INTO eskit_lease.%I DEFAULT VALUES'),
             ('r', 'updates', 'UPDATE eskit_lease.%I SET %I = NULL WHERE false'), ('r', 'deletes', 'DELETE FROM eskit_lease.%I WHERE false'),
             ('r', 'truncates', 'TRUNCATE eskit_lease.%I'), ('vr', 'locks', 'LOCK TABLE eskit_lease.%I IN ROW EXCLUSIVE MODE'),
             ('S', 'draws', 'SELECT nextval(''eskit_lease.%I'')'),
             ('S', 'sets', 'SELECT setval(''eskit_lease.%I'', 1)'), ('S', 'reads', 'TABLE eskit_lease.%I')) AS u (kinds, use, statement)
    ON strpos(u.kinds, c.relkind::text) > 0
CROSS JOIN unnest(ARRAY['public', 'consumer', 'monitor', 'admin']) AS r (role)
WHERE c.relnamespace = 'eskit_lease'::regnamespace;
SELECT relkind, relation, string_agg(use, ' ' ORDER BY use) FILTER (WHERE may AND role = 'public') AS public,
       string_agg(use, ' ' ORDER BY use) FILTER (WHERE may AND role = 'consumer') AS consumer,
       string_agg(use, ' ' ORDER BY use) FILTER (WHERE may AND role = 'monitor') AS monitor,
       string_agg(use, ' ' ORDER BY use) FILTER (WHERE may AND role = 'admin') AS admin
FROM uses GROUP BY 1, 2 ORDER BY 1, 2;
SELECT c.relname, r.rolname, p.privilege
FROM pg_class AS c, pg_roles AS r, unnest(ARRAY['INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) AS p (privilege)
WHERE c.relnamespace = 'eskit_lease'::regnamespace AND c.relkind IN ('r', 'v') AND r.rolname LIKE 'regress\_%' AND has_table_privilege(r.oid, c.oid, p.privilege);

-- Types, except row types of tables and views.
SELECT count(*) AS types, array_agg(t.typname ORDER BY t.typname) FILTER (WHERE x.tried = 'yes') AS usable
FROM pg_type AS t, LATERAL (SELECT pg_temp.tried('regress_consumer', format('CREATE TEMP TABLE t (c eskit_lease.%I)', t.typname)) AS tried) AS x
WHERE t.typnamespace = 'eskit_lease'::regnamespace AND t.typelem = 0
  AND NOT EXISTS (SELECT FROM pg_class AS c WHERE c.oid = t.typrelid AND c.relkind <> 'c');

-- The schema: no role creates anything in it, or drops anything from it.
SELECT statement, left(pg_temp.raises('regress_consumer', statement), 5) AS raises
FROM unnest(ARRAY[
    'CREATE TABLE eskit_lease.mine ()', 'CREATE FUNCTION eskit_lease.stats(int) RETURNS int LANGUAGE sql AS ''SELECT 1''',
    'CREATE OPERATOR eskit_lease.= (LEFTARG = text, RIGHTARG = text, FUNCTION = texteq)', 'CREATE CAST (text AS uuid) WITH INOUT AS IMPLICIT',
    'CREATE CAST (bigint AS text) WITH INOUT AS ASSIGNMENT', 'CREATE TABLE public.child () INHERITS (eskit_lease._leases)',
    'CREATE RULE mine AS ON INSERT TO eskit_lease._leases DO INSTEAD NOTHING', 'CREATE POLICY mine ON eskit_lease._leases',
    'CREATE TRIGGER mine AFTER INSERT ON eskit_lease._leases EXECUTE FUNCTION eskit_lease.require_fence(''r'')',
    'CREATE INDEX ON eskit_lease._leases (fence)', 'CREATE STATISTICS mine ON resource, fence FROM eskit_lease._leases',
    'COMMENT ON TABLE eskit_lease._leases IS ''mine''', 'ALTER TABLE eskit_lease._leases DISABLE TRIGGER ALL', 'DROP VIEW eskit_lease.leases',
    'ALTER SCHEMA eskit_lease RENAME TO mine', 'DROP EXTENSION eskit_lease', 'ALTER EXTENSION eskit_lease ADD SCHEMA public',
    'ALTER EXTENSION eskit_lease UPDATE', 'CREATE EVENT TRIGGER mine ON ddl_command_end EXECUTE FUNCTION eskit_lease.require_fence()',
    'SELECT eskit_lease.table_fence(''eskit_lease._leases'', ''r'')', 'SELECT eskit_lease.table_fence(''pg_catalog.pg_class'', ''r'')',
    'SELECT eskit_lease.table_unfence(''pg_catalog.pg_authid'')', 'SET eskit_lease.fence_superusers = off', 'SET eskit_lease.max_ttl = ''1 day''',
    'SET eskit_lease.mine = 1', 'ALTER ROLE regress_consumer SET eskit_lease.worker = off']) AS statement;

-- The trigger of fenced tables. PUBLIC may use it as a trigger only, because the owner of such a table makes its
-- triggers anew with each partition.
SELECT pg_temp.raises('regress_public', 'SELECT eskit_lease.require_fence()');
GRANT CREATE ON SCHEMA public TO regress_consumer, regress_public;
SET ROLE regress_consumer;
CREATE TABLE fenced (i int) PARTITION BY RANGE (i);
SELECT eskit_lease.table_fence('fenced', 'r');
RESET ROLE;
ALTER TABLE fenced OWNER TO regress_public;
SET ROLE regress_public;
CREATE TABLE fenced_1 PARTITION OF fenced FOR VALUES FROM (0) TO (10);
SELECT pg_temp.error_of('INSERT INTO fenced VALUES (1)');
RESET ROLE;
DROP TABLE fenced;

-- A stolen session uuid, and fences, which every role may read, are of no use to another consumer, a monitor or an
-- administrator. The test calls each function that takes a session, a fence or ids of items, with those of another
-- role.
SET ROLE regress_consumer;
SELECT session AS s FROM session_open('victim', '1 hour') \gset
SELECT fence AS lease FROM lease_acquire('r', :'s') \gset
SELECT granted FROM lock_acquire('lock', 'owner', '1 hour') AS lock;
SELECT fence AS lock FROM lock_acquire('other lock', 'owner', '1 hour') \gset
SELECT group_create('g', 1), queue_create('q'), semaphore_create('sem', 1);
SELECT group_join('g', :'s') > 0 AS joined;
RESET ROLE;
CALL pg_temp.wait_for($$(SELECT count(*) = 1 FROM eskit_lease.group_partitions WHERE group_name = 'g' AND state = 'owned')$$);
SET ROLE regress_consumer;
SELECT fence AS part FROM group_assignment('g', :'s') \gset
SELECT item_add('q', '1') AS item, item_add('q', '2') AS item_2 \gset
SELECT fence AS claim FROM item_claim('q', :'s', 2) LIMIT 1 \gset
SELECT fence AS run FROM execution_begin('k', :'s') \gset
RESET ROLE;
SELECT fence AS done FROM execution_begin('done', :'s') \gset
SELECT execution_finish('done', :done, '1');
CREATE TEMP TABLE stolen AS
SELECT * FROM (VALUES ('%', 'session', :'s'), ('%', 'resource', 'r'), ('%', 'resources', '{r}'), ('lease\_%', 'fence', :'lease'), ('fence\_check', 'fence', :'lease'),
    ('%', 'group_name', 'g'), ('%', 'partition', '0'), ('cursor\_%', 'fence', :'part'), ('group\_%', 'fence', :'part'), ('%', 'position', '5'),
    ('%', 'queue', 'q'), ('item\_%', 'fence', :'claim'), ('%', 'ids', format('{%s}', :'item')), ('%', 'id', :'item'), ('item\_%', 'error', 'x'),
    ('%', 'key', 'k'), ('execution\_%', 'fence', :'run'), ('execution\_%', 'error', 'x'), ('%', 'revision', '0'), ('%', 'timeout', '0'), ('%', 'boot_id', '0'),
    ('%', 'ttl_ms', '1000'), ('%', 'why', 'theft'), ('%', 'max_items', '1'), ('%', 'retry_in', '0'), ('%', 'grace', '1 minute'), ('%', 'retry', 'true'),
    ('%', 'retry_in_doubt', 'true'), ('%', 'outbox', 'pg_class'), ('%', 'result', '1'), ('lease\_acquire', 'queue', 'true')) AS v (function, argument, given);
CREATE TEMP VIEW thefts AS
SELECT f.function,
       string_agg(a.argument, ' ') FILTER (WHERE s.given IS NULL) AS undecided,
       format('SELECT * FROM eskit_lease.%I(%s)', f.function, string_agg(format('%I => %L', a.argument, s.given), ', ' ORDER BY a.n)) AS call
FROM functions AS f
CROSS JOIN unnest(f.names) WITH ORDINALITY AS a (argument, n)
LEFT JOIN LATERAL (SELECT s.given FROM stolen AS s WHERE f.function LIKE s.function AND s.argument = a.argument ORDER BY length(s.function) DESC LIMIT 1) AS s ON true
WHERE f.names && ARRAY['session', 'fence', 'ids']
GROUP BY f.function;
CREATE FUNCTION pg_temp.code(role text, statement text) RETURNS text LANGUAGE sql AS $$ SELECT left(pg_temp.raises(role, statement), 5) $$;
SELECT function, undecided, pg_temp.code('regress_thief', call) AS thief, pg_temp.code('regress_monitor', call) AS monitor, pg_temp.code('regress_admin', call) AS admin,
       pg_temp.code('regress_public', call) AS public, pg_temp.code('regress_consumer', call) AS victim
FROM thefts ORDER BY function;
-- What belongs to another role by name: its declarations, its finished keys, its locks.
SELECT regexp_replace(statement, '[0-9]{9,}', 'FENCE') AS statement, pg_temp.raises('regress_thief', statement) AS raises
FROM unnest(ARRAY[
    'SELECT semaphore_resize(''sem'', 2)', 'SELECT semaphore_drop(''sem'')', 'SELECT group_alter(''g'', ''range'')', 'SELECT group_resize(''g'', 2, true)',
    'SELECT group_drop(''g'')', 'SELECT queue_alter(''q'', 1)', 'SELECT queue_drop(''q'', true)',
    format('SELECT lease_renew(''other lock'', %s)', :'lock'), format('SELECT lease_release(''other lock'', %s)', :'lock'),
    format('SELECT execution_finish(''done'', %s)', :'done')]) AS statement;
-- None of these calls has had an effect.
SELECT state, leases, waiting_for FROM sessions WHERE session = :'s';
SELECT resource, state, fence IN (:lease, :lock, :part) AS same FROM leases WHERE role = 'regress_consumer' ORDER BY 1;
SELECT state, position FROM executions LEFT JOIN group_lag ON group_name = 'g' WHERE key = 'k';
SELECT state, count(*) FROM items WHERE queue = 'q' GROUP BY 1;

-- A guessed session uuid: the caller does not learn whether it exists.
SET ROLE regress_thief;
SELECT alive, reason FROM session_heartbeat('00000000-0000-0000-0000-000000000000');
RESET ROLE;

SELECT session_close(session) FROM sessions;
SELECT group_drop('g'), queue_drop('q', true), semaphore_drop('sem');
DELETE FROM eskit_lease._executions;
DROP OWNED BY regress_public, regress_consumer, regress_thief, regress_monitor, regress_admin;
DROP ROLE regress_public, regress_consumer, regress_thief, regress_monitor, regress_admin;
