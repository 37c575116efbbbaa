-- The triggers of fenced tables must be as table_fence() makes them, not only by name. Tables become partitions or
-- inherit; triggers are replaced, disabled or made by others, by roles that may and roles that may not. The worker is
-- off: what is seen is the verbs' own doing.
\i pg_test/sql/include/worker_off.psql
\pset null -
SELECT session AS a FROM session_open('a', '1 hour') \gset
SELECT fence AS f FROM lease_acquire('r', :'a') \gset
CREATE VIEW fences AS
SELECT table_name, resource, checks_each, complete FROM eskit_lease.fenced_tables ORDER BY table_name::text;
CREATE VIEW triggers AS
SELECT tgrelid::regclass AS on_table, tgname, tgtype, tgenabled, tgparentid <> 0 AS inherited
FROM pg_trigger WHERE tgname LIKE 'eskit_lease_fence%' ORDER BY tgrelid::regclass::text, 2;
-- Only the SQLSTATE, as major versions word PostgreSQL's own errors differently.
CREATE FUNCTION pg_temp.state_of(statement text) RETURNS text LANGUAGE sql AS $$SELECT left(pg_temp.error_of(statement), 5)$$;

-- A fenced table is attached to a partitioned one: writes by way of the parent are not checked, as the view shows,
-- until the table is fenced again.
CREATE TABLE part (id int);
CREATE TABLE whole (id int) PARTITION BY LIST (id);
SELECT table_fence('part', 'r');
ALTER TABLE whole ATTACH PARTITION part FOR VALUES IN (1);
SELECT * FROM fences;
SELECT table_fence('part', 'r'), table_fence('part', 'r') AS again;
SELECT * FROM fences;
SELECT * FROM triggers;
SELECT pg_temp.error_of(statement)
FROM unnest(ARRAY['INSERT INTO whole VALUES (1)', 'INSERT INTO part VALUES (1)', 'TRUNCATE part', 'TRUNCATE whole']) AS statement;
BEGIN;
SELECT fence_check('r', :f);
INSERT INTO whole VALUES (1);
COMMIT;
SELECT * FROM part;
-- When the parent is fenced by the same resource, it takes over its partitions' fences.
CREATE TABLE part_2 PARTITION OF whole FOR VALUES IN (2);
CREATE TABLE part_3 PARTITION OF whole FOR VALUES IN (3, 4) PARTITION BY LIST (id);
CREATE TABLE part_3_3 PARTITION OF part_3 FOR VALUES IN (3);
SELECT table_fence('part_2', 'r'), table_fence('part_3_3', 'other');
SELECT pg_temp.error_of('SELECT table_fence(''whole'', ''r'')');
SELECT table_unfence('part_3_3'), table_fence('part_3_3', 'r'), table_fence('part_3', 'r');
SELECT * FROM fences;
SELECT table_fence('whole', 'r'), table_fence('whole', 'r') AS again;
SELECT * FROM fences;
SELECT * FROM triggers;
SELECT pg_temp.error_of(statement)
FROM unnest(ARRAY['INSERT INTO whole VALUES (1)', 'UPDATE whole SET id = 1', 'INSERT INTO part_3_3 VALUES (3)', 'TRUNCATE part_3_3', 'TRUNCATE part_2']) AS statement;
-- A partition's trigger is disabled, or ALTER TABLE on the parent changes those of all partitions: the view shows it,
-- and table_fence repairs it.
ALTER TABLE part_3_3 DISABLE TRIGGER eskit_lease_fence;
SELECT * FROM fences;
SELECT table_fence('whole', 'r'), table_fence('whole', 'r') AS again;
SELECT * FROM fences;
SELECT pg_temp.state_of('INSERT INTO whole VALUES (3)');
ALTER TABLE whole ENABLE TRIGGER eskit_lease_fence;
SELECT table_fence('part_2', 'r'), table_fence('part_2', 'r') AS again;
SELECT * FROM fences;
SELECT table_fence('whole', 'r');
SELECT * FROM fences;
-- A fenced table cannot be attached to another fenced one.
CREATE TABLE alone (id int);
SELECT table_fence('alone', 'r');
SELECT pg_temp.state_of('ALTER TABLE whole ATTACH PARTITION alone FOR VALUES IN (5)');
SELECT table_unfence('alone');
ALTER TABLE whole ATTACH PARTITION alone FOR VALUES IN (5);
SELECT pg_temp.state_of('INSERT INTO alone VALUES (5)');
-- In a detached partition only TRUNCATE is still checked, as the view shows.
ALTER TABLE whole DETACH PARTITION part_2;
SELECT * FROM fences;
SELECT table_fence('part_2', 'r');
SELECT * FROM fences;
SELECT table_unfence('whole'), table_unfence('part_2');
SELECT * FROM triggers;
INSERT INTO whole VALUES (1), (3), (5);
DROP TABLE whole, part_2;

-- Inheritance: rows are written by statements that name another table. Such a table cannot be fenced or repaired, and
-- the view says so.
CREATE TABLE child (i int);
CREATE TABLE parent (i int);
SELECT table_fence('child', 'r'), table_fence('parent', 'r');
ALTER TABLE child INHERIT parent;
SELECT * FROM fences;
SELECT pg_temp.error_of(format('SELECT table_fence(%L, ''r'')', name)) FROM unnest('{child,parent}'::text[]) AS name;
ALTER TABLE child NO INHERIT parent;
SELECT * FROM fences;
SELECT table_unfence('parent'), table_unfence('child');
DROP TABLE child, parent;

-- A role with TRIGGER on a table may replace its triggers. table_fence warns of that, the view shows it, and a repeated
-- call repairs it.
CREATE ROLE regress_trigger;
CREATE ROLE regress_other;
GRANT CREATE, USAGE ON SCHEMA public TO regress_trigger;
CREATE TABLE t (i int, p int);
CREATE TABLE u (i int, p int) PARTITION BY LIST (i);
CREATE TABLE u_1 PARTITION OF u FOR VALUES IN (1);
GRANT ALL ON t TO regress_trigger;
GRANT TRIGGER ON u TO regress_trigger;
GRANT TRIGGER ON u_1 TO regress_other, PUBLIC;
GRANT SELECT, INSERT ON u, u_1 TO regress_trigger;
SELECT table_fence('t', 'r');
SELECT table_fence('u', 'r');
SET ROLE regress_trigger;
CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
-- The role cannot replace a partition's inherited triggers.
SELECT pg_temp.state_of('CREATE OR REPLACE TRIGGER eskit_lease_fence AFTER INSERT ON u_1 FOR EACH ROW EXECUTE FUNCTION nothing()');
RESET ROLE;
\set VERBOSITY terse
SET client_min_messages = error;
CREATE FUNCTION pg_temp.replaced(by text, events text DEFAULT 'INSERT OR UPDATE OR DELETE OR TRUNCATE')
RETURNS TABLE (resource text, complete boolean, fenced text, again boolean, after boolean, writes text) LANGUAGE plpgsql AS $$
BEGIN
    SET LOCAL ROLE regress_trigger;
    EXECUTE format('CREATE OR REPLACE TRIGGER eskit_lease_fence AFTER %s ON t %s', events, by);
    RESET ROLE;
    SELECT f.resource, f.complete INTO resource, complete FROM eskit_lease.fenced_tables AS f WHERE table_name = 't'::regclass;
    fenced := pg_temp.error_of('SELECT eskit_lease.table_fence(''t'', ''r'')');
    again := eskit_lease.table_fence('t', 'r');
    SELECT f.complete INTO after FROM eskit_lease.fenced_tables AS f WHERE table_name = 't'::regclass;
    writes := pg_temp.state_of('INSERT INTO t VALUES (1)');
    RETURN NEXT;
END
$$;
SELECT by, x.* FROM unnest(ARRAY[
    'EXECUTE FUNCTION nothing()', 'EXECUTE FUNCTION nothing(''r'')', 'WHEN (false) EXECUTE FUNCTION eskit_lease.require_fence(''r'')',
    'FOR EACH STATEMENT EXECUTE FUNCTION eskit_lease.require_fence(''r'')']) AS by, pg_temp.replaced(by) AS x;
SELECT events, by, x.*
FROM (VALUES ('UPDATE OF p', 'EXECUTE FUNCTION eskit_lease.require_fence(''r'')'), ('INSERT OR UPDATE', 'EXECUTE FUNCTION eskit_lease.require_fence(''r'')'),
             ('UPDATE', 'REFERENCING NEW TABLE AS n EXECUTE FUNCTION eskit_lease.require_fence(''r'')'),
             ('INSERT OR UPDATE OR DELETE', 'FOR EACH ROW EXECUTE FUNCTION eskit_lease.require_fence(''r'')'),
             ('INSERT OR UPDATE OF p OR DELETE', 'FOR EACH ROW WHEN (pg_trigger_depth() > 9) EXECUTE FUNCTION eskit_lease.require_fence(''r'')')) AS v (events, by),
     pg_temp.replaced(by, events) AS x;
-- With another resource, or other arguments, in its trigger, a table must be unfenced first.
SET ROLE regress_trigger;
CREATE OR REPLACE TRIGGER eskit_lease_fence AFTER INSERT ON t EXECUTE FUNCTION eskit_lease.require_fence('mine');
RESET ROLE;
SELECT pg_temp.error_of('SELECT table_fence(''t'', ''r'')');
SET ROLE regress_trigger;
CREATE OR REPLACE TRIGGER eskit_lease_fence AFTER INSERT ON t EXECUTE FUNCTION eskit_lease.require_fence('r', 'p', 'x');
RESET ROLE;
SELECT * FROM fenced_tables WHERE table_name = 't'::regclass;
SELECT table_unfence('t');
-- The role's trigger exists before the table is fenced; also as a constraint trigger, which is not replaced but made
-- anew.
SET ROLE regress_trigger;
CREATE CONSTRAINT TRIGGER eskit_lease_fence AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION eskit_lease.require_fence('r');
RESET ROLE;
SELECT * FROM fences WHERE table_name = 't'::regclass;
SELECT table_fence('t', 'r'), table_fence('t', 'r') AS again, table_unfence('t'), table_unfence('t', true) AS again;
SET ROLE regress_trigger;
CREATE TRIGGER eskit_lease_fence BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION nothing();
RESET ROLE;
SELECT table_unfence('t'), table_unfence('t', true) AS again;
-- The triggers of a partitioned table and its partitions; and a partition's trigger for TRUNCATE.
SET ROLE regress_trigger;
CREATE OR REPLACE TRIGGER eskit_lease_fence AFTER INSERT ON u FOR EACH ROW EXECUTE FUNCTION nothing();
CREATE OR REPLACE TRIGGER eskit_lease_fence_truncate AFTER TRUNCATE ON u_1 EXECUTE FUNCTION nothing();
INSERT INTO u VALUES (1);
RESET ROLE;
SELECT * FROM fences;
SELECT pg_temp.error_of('SELECT table_fence(''u_1'', ''r'')');
SELECT table_fence('u', 'r'), table_fence('u', 'r') AS again;
SELECT * FROM fences;
SELECT * FROM triggers;
SELECT pg_temp.state_of(statement) FROM unnest(ARRAY['INSERT INTO u VALUES (1)', 'INSERT INTO u_1 VALUES (1)', 'TRUNCATE u_1', 'TRUNCATE u']) AS statement;
SELECT table_unfence('u');
-- A partition's own trigger, which stands in the way of the parent's.
SET ROLE regress_trigger;
CREATE CONSTRAINT TRIGGER eskit_lease_fence AFTER INSERT ON u_1 FOR EACH ROW EXECUTE FUNCTION nothing();
RESET ROLE;
SELECT table_fence('u', 'r');
SELECT * FROM triggers;
RESET client_min_messages;
\set VERBOSITY default

-- An owner that may not call table_fence may still add partitions, and drop the triggers.
ALTER TABLE u OWNER TO regress_trigger;
ALTER TABLE u_1 OWNER TO regress_trigger;
SET ROLE regress_trigger;
CREATE TABLE u_2 PARTITION OF u FOR VALUES IN (2);
CREATE TABLE u_3 (i int, p int);
ALTER TABLE u ATTACH PARTITION u_3 FOR VALUES IN (3);
SELECT pg_temp.state_of(statement)
FROM unnest(ARRAY['INSERT INTO u VALUES (2)', 'INSERT INTO u_3 VALUES (3)', 'SELECT eskit_lease.table_fence(''u'', ''r'')', 'SELECT eskit_lease.table_unfence(''u'')']) AS statement;
SELECT pg_temp.error_of('SELECT eskit_lease.require_fence()');
DROP TRIGGER eskit_lease_fence ON u;
INSERT INTO u VALUES (2), (3);
RESET ROLE;
SELECT * FROM fences;
SELECT table_unfence('u');

-- The partition's column may be anywhere in a row: behind other columns that are NULL or not, of any length, or
-- dropped; or the row was written before the column was added.
SELECT group_create('g', 4, rebalance_timeout => '1 hour'), group_join('g', :'a') > 0 AS joined;
SELECT max(fence) FILTER (WHERE partition = 1) AS g1, max(fence) FILTER (WHERE partition = 2) AS g2 FROM group_assignment('g', :'a') \gset
CREATE TABLE places (i int NOT NULL, gone bigint, t text, n smallint);
INSERT INTO places VALUES (1, 1, 'early', 1), (2, NULL, NULL, NULL);
ALTER TABLE places DROP gone, ADD p int NOT NULL DEFAULT 1, ADD q smallint;
INSERT INTO places VALUES (3, 'late', 3, 2, 2), (4, NULL, NULL, 1, NULL), (5, repeat('long', 1000), NULL, 2, 1), (6, NULL, 6, 1, 2);
CREATE FUNCTION pg_temp.written(by text) RETURNS TABLE (partition text, i int, may text) LANGUAGE sql AS $$
    SELECT to_jsonb(x) ->> by, x.i, pg_temp.state_of(format('UPDATE places SET n = 0 WHERE i = %s', x.i)) FROM places AS x ORDER BY x.i
$$;
SELECT table_fence('places', 'g', 'p');
BEGIN;
SELECT fence_check('g', :g1);
SELECT * FROM pg_temp.written('p');
SELECT pg_temp.state_of('UPDATE places SET p = 3 - p WHERE i = 1');
SELECT fence_check('g', :g2);
UPDATE places SET p = 3 - p;
COMMIT;
SELECT table_unfence('places'), table_fence('places', 'g', 'q');
BEGIN;
SELECT fence_check('g', :g2);
SELECT * FROM pg_temp.written('q');
COMMIT;
CREATE TABLE shards (t text, p int) PARTITION BY LIST (p);
CREATE TABLE shards_1 PARTITION OF shards FOR VALUES IN (1);
CREATE TABLE shards_2 (p int, gone int, t text);
ALTER TABLE shards_2 DROP gone;
ALTER TABLE shards ATTACH PARTITION shards_2 FOR VALUES IN (2);
SELECT table_fence('shards', 'g', 'p');
BEGIN;
SELECT fence_check('g', :g1);
INSERT INTO shards VALUES ('a', 1), ('b', 1);
SELECT pg_temp.state_of('INSERT INTO shards VALUES (''a'', 1), (''b'', 2)'), pg_temp.state_of('INSERT INTO shards VALUES (''b'', 2), (''a'', 1)'),
       pg_temp.state_of('UPDATE shards SET p = 2');
SELECT fence_check('g', :g2);
INSERT INTO shards VALUES ('c', 2), ('d', 1);
UPDATE shards SET p = 3 - p;
COMMIT;
SELECT * FROM shards ORDER BY t;

-- Fenced by a column, a plain table is checked statement by statement, by the rows that each has written; also with ON
-- CONFLICT, with several transition tables in one statement, and with users' triggers that read them.
CREATE TABLE c (i int PRIMARY KEY, p int);
SELECT table_fence('c', 'g', 'p'), table_fence('c', 'g', 'p') AS again;
SELECT * FROM triggers WHERE on_table = 'c'::regclass;
CREATE FUNCTION count_rows() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE NOTICE '% has written % rows', TG_NAME, (SELECT count(*) FROM n);
    RETURN NULL;
END
$$;
CREATE TRIGGER a_reader AFTER INSERT ON c REFERENCING NEW TABLE AS n EXECUTE FUNCTION count_rows();
CREATE TRIGGER z_reader AFTER INSERT ON c REFERENCING NEW TABLE AS n EXECUTE FUNCTION count_rows();
BEGIN;
SELECT fence_check('g', :g1);
INSERT INTO c VALUES (1, 1), (2, 1), (3, 1);
SELECT pg_temp.error_of(statement)
FROM unnest(ARRAY['INSERT INTO c VALUES (4, 1), (5, 2)', 'INSERT INTO c VALUES (4, 2), (5, 1)', 'INSERT INTO c VALUES (1, 2) ON CONFLICT DO NOTHING',
                  'INSERT INTO c VALUES (1, 1) ON CONFLICT (i) DO UPDATE SET p = 2', 'INSERT INTO c VALUES (1, 1), (4, 1) ON CONFLICT (i) DO UPDATE SET p = 1',
                  'MERGE INTO c USING (VALUES (1), (7)) AS s (x) ON i = x WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT VALUES (x, 2)',
                  'WITH w AS (UPDATE c SET p = 2 WHERE i = 1 RETURNING i) DELETE FROM c WHERE i = 2', 'UPDATE c SET p = 2 WHERE i = 3']) AS statement;
SELECT fence_check('g', :g2);
-- More rows than work_mem holds.
SET LOCAL work_mem = '64kB';
INSERT INTO c SELECT i, 1 + i % 2 FROM generate_series(100, 20000) AS i;
SELECT pg_temp.error_of('UPDATE c SET p = CASE i WHEN 20000 THEN 3 ELSE p END');
UPDATE c SET p = 3 - p;
DELETE FROM c WHERE p = 2;
COMMIT;
BEGIN;
SELECT fence_check('g', :g1);
SELECT pg_temp.error_of(statement)
FROM unnest(ARRAY['INSERT INTO c VALUES (1, 2) ON CONFLICT DO NOTHING', 'DELETE FROM c WHERE i = 101', 'INSERT INTO c VALUES (101, 1) ON CONFLICT (i) DO UPDATE SET p = 2']) AS statement;
COMMIT;
-- A MERGE with something else on the same table, of whose rows old minor versions lost some.
CREATE TABLE m (i int PRIMARY KEY, parent int REFERENCES m ON DELETE CASCADE ON UPDATE CASCADE, p int);
INSERT INTO m SELECT i, NULL, 1 FROM generate_series(1, 3) AS i;
SELECT table_fence('m', 'g', 'p');
SELECT pg_temp.state_of(statement), statement
FROM unnest(ARRAY['WITH w AS (UPDATE m SET p = 1 WHERE false) MERGE INTO m USING (VALUES (1)) AS v (x) ON i = x WHEN MATCHED THEN UPDATE SET p = 3',
                  'WITH w AS (DELETE FROM m WHERE false) MERGE INTO m USING (VALUES (2)) AS v (x) ON i = x WHEN MATCHED THEN DELETE',
                  'WITH w AS (INSERT INTO m SELECT 1, NULL, 1 WHERE false) MERGE INTO m USING (VALUES (7)) AS v (x) ON i = x WHEN NOT MATCHED THEN INSERT VALUES (7, NULL, 0)',
                  'MERGE INTO m USING (VALUES (2)) AS v (x) ON i = x WHEN MATCHED THEN DELETE',
                  'MERGE INTO m USING (VALUES (3)) AS v (x) ON i = x WHEN MATCHED THEN UPDATE SET i = 33, p = 2']) AS statement;
SELECT * FROM m ORDER BY i;
-- One of the triggers is disabled, dropped or replaced, or there is one too many.
CREATE FUNCTION pg_temp.after(statement text) RETURNS TABLE (complete boolean, again boolean, after boolean, deletes text) LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE statement;
    SELECT f.complete INTO complete FROM fences AS f WHERE table_name = 'c'::regclass;
    again := eskit_lease.table_fence('c', 'g', 'p');
    SELECT f.complete INTO after FROM fences AS f WHERE table_name = 'c'::regclass;
    deletes := pg_temp.state_of('DELETE FROM c');
    RETURN NEXT;
END
$$;
SET client_min_messages = error;
SELECT statement, x.*
FROM unnest(ARRAY['ALTER TABLE c DISABLE TRIGGER eskit_lease_fence_delete', 'DROP TRIGGER eskit_lease_fence_update ON c', 'DROP TRIGGER eskit_lease_fence_truncate ON c',
                  'CREATE OR REPLACE TRIGGER eskit_lease_fence_delete AFTER DELETE ON c EXECUTE FUNCTION nothing()',
                  'CREATE OR REPLACE TRIGGER eskit_lease_fence AFTER INSERT OR UPDATE OR DELETE ON c FOR EACH ROW EXECUTE FUNCTION eskit_lease.require_fence(''g'', ''p'')',
                  'SELECT 1']) AS statement, pg_temp.after(statement) AS x;
RESET client_min_messages;
SELECT * FROM triggers WHERE on_table = 'c'::regclass;
-- As a partition the table is checked row by row; once detached, statement by statement again.
CREATE TABLE cs (i int, p int) PARTITION BY LIST (p);
ALTER TABLE cs ATTACH PARTITION c DEFAULT;
SELECT * FROM fences WHERE table_name = 'c'::regclass;
SELECT table_fence('c', 'g', 'p'), table_fence('c', 'g', 'p') AS again;
SELECT * FROM triggers WHERE on_table = 'c'::regclass;
SELECT pg_temp.error_of('INSERT INTO cs VALUES (7, 2)');
ALTER TABLE cs DETACH PARTITION c;
SELECT table_fence('c', 'g', 'p'), table_fence('c', 'g', 'p') AS again;
SELECT * FROM triggers WHERE on_table = 'c'::regclass;
SELECT table_unfence('c'), table_unfence('c', true) AS again;
SELECT * FROM triggers WHERE on_table = 'c'::regclass;

DROP TABLE t, u, places, shards, c, cs, m;
DROP FUNCTION nothing, count_rows;
DROP VIEW fences, triggers;
DROP OWNED BY regress_trigger, regress_other;
DROP ROLE regress_trigger, regress_other;
SELECT session_close(:'a');
SELECT group_drop('g');
SELECT * FROM fenced_tables;
\i pg_test/sql/include/worker_on.psql
