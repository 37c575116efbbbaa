-- Bridges to rows that workers lease by: requests and refusals, by one connection. Crossings are in
-- pg_test/specs/bridge-row.spec.
\i pg_test/sql/include/helpers.psql
\pset null -
CREATE ROLE regress_owner;
CREATE ROLE regress_other;
SELECT session AS a FROM session_open('a', '1 hour') \gset
SELECT session AS b FROM session_open('b', '1 hour') \gset
CREATE TABLE topics (topic text PRIMARY KEY, owner text, leased_until timestamptz, position bigint NOT NULL DEFAULT 0);
INSERT INTO topics (topic) VALUES ('orders'), ('invoices');
-- An old worker's UPDATE; returns whether it owns the row then.
CREATE FUNCTION pg_temp.take(topic text, who text) RETURNS boolean LANGUAGE sql AS $$
    WITH taken AS (
        UPDATE topics SET owner = $2, leased_until = clock_timestamp() + interval '1 hour'
        WHERE topic = $1 AND (owner IS NULL OR leased_until IS NULL OR leased_until < clock_timestamp() OR owner = $2) RETURNING 1)
    SELECT EXISTS (SELECT FROM taken)
$$;
-- The row's owner, without the number in a marker, and its remaining time in tens of seconds.
CREATE VIEW pg_temp.row AS
SELECT topic, regexp_replace(owner, '[0-9]+$', 'N') AS owner, ceil(extract(epoch FROM leased_until - clock_timestamp()) / 10) AS tens_left, position FROM topics;
CREATE PROCEDURE pg_temp.wait_for_lease(resource text, session uuid) LANGUAGE plpgsql AS $$
BEGIN
    CALL pg_temp.wait_for(format('(SELECT reason = ''already_held'' FROM pg_temp.ask(%L, %L))', resource, session));
    CALL pg_temp.wait_for(format('(SELECT held FROM eskit_lease.bridges WHERE resource = %L)', resource));
END $$;

SELECT bridge_create_row('r', 'topics', 'orders', 'owner', 'leased_until');
SELECT resource, lock_key, target, key, owner_column, until_column, held, blocked_by, owner = current_user AS mine FROM bridges;
-- A call never grants the lease on the spot; the worker grants it to the first in line. Then the row is the worker's.
SELECT * FROM pg_temp.ask('r', :'a');
SELECT * FROM pg_temp.ask('r', :'a', true);
CALL pg_temp.wait_for_lease('r', :'a');
SELECT * FROM pg_temp.row WHERE topic = 'orders';
SELECT pg_temp.take('orders', 'old'), pg_temp.take('invoices', 'old');
SELECT fence AS fa FROM lease_acquire('r', :'a', true) \gset
SELECT split_part(owner, ':', 3)::bigint < :fa AS before FROM topics WHERE topic = 'orders';
BEGIN;
SELECT fence_check('r', :fa);
SELECT fence_check('r', :fa) AS again;
UPDATE topics SET position = 1 WHERE topic = 'orders';
COMMIT;
BEGIN READ ONLY;
SELECT fence_check('r', :fa);
COMMIT;
-- The check passes with a snapshot from before it: no other session can have owned the row since the grant.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT position FROM topics WHERE topic = 'orders';
SELECT fence_check('r', :fa);
COMMIT;
SELECT pg_temp.error_of('SELECT bridge_drop(''r'')');
-- Released: the time in the row ends, and an old worker may take the row. Then the new worker waits.
SELECT lease_release('r', :fa);
CALL pg_temp.wait_for('(SELECT tens_left <= 0 FROM pg_temp.row WHERE topic = ''orders'')');
SELECT pg_temp.take('orders', 'old');
SELECT * FROM pg_temp.ask('r', :'a', true);
UPDATE topics SET leased_until = clock_timestamp() WHERE topic = 'orders' AND owner = 'old';
CALL pg_temp.wait_for_lease('r', :'a');
SELECT fence > :fa AS greater, fence AS fa FROM lease_acquire('r', :'a') \gset
-- Another owner has the row: an old worker that took it by force, or another resource. Once the row is free, the lease
-- goes on under a new fence.
UPDATE topics SET owner = 'old' WHERE topic = 'orders';
SELECT pg_temp.error_of(format('SELECT fence_check(''r'', %s)', :fa));
UPDATE topics SET owner = NULL WHERE topic = 'orders';
CALL pg_temp.wait_for(format('(SELECT fence > %s FROM eskit_lease.lease_acquire(''r'', %L))', :fa, :'a'));
SELECT pg_temp.error_of(format('SELECT fence_check(''r'', %s)', :fa));
SELECT fence AS fa FROM lease_acquire('r', :'a') \gset
SELECT fence_check('r', :fa);
UPDATE topics SET owner = 'eskit_lease:s:1' WHERE topic = 'orders';
SELECT pg_temp.error_of(format('SELECT fence_check(''r'', %s)', :fa));
UPDATE topics SET leased_until = NULL WHERE topic = 'orders';
CALL pg_temp.wait_for(format('(SELECT fence > %s FROM eskit_lease.lease_acquire(''r'', %L))', :fa, :'a'));
SELECT fence AS fa FROM lease_acquire('r', :'a') \gset
-- The row has the worker's marker, but with a number drawn after the grant.
BEGIN;
UPDATE topics SET owner = 'eskit_lease:r:' || nextval('fence_seq') WHERE topic = 'orders';
SELECT pg_temp.error_of(format('SELECT fence_check(''r'', %s)', :fa));
COMMIT;
CALL pg_temp.wait_for(format('(SELECT fence > %s FROM eskit_lease.lease_acquire(''r'', %L))', :fa, :'a'));
SELECT fence AS fa FROM lease_acquire('r', :'a') \gset
SELECT fence_check('r', :fa);
-- The row's time is over, but no old worker came: the worker keeps the row.
UPDATE topics SET leased_until = clock_timestamp() - interval '1 day' WHERE topic = 'orders';
SELECT fence_check('r', :fa);
CALL pg_temp.wait_for('(SELECT tens_left = 3 FROM pg_temp.row WHERE topic = ''orders'')');
SELECT fence_check('r', :fa);
-- The row disappears and comes back. A row whose key has changed counts as another row.
UPDATE topics SET topic = 'orders 2' WHERE topic = 'orders';
SELECT pg_temp.error_of(format('SELECT fence_check(''r'', %s)', :fa));
UPDATE topics SET topic = 'orders' WHERE topic = 'orders 2';
SELECT fence_check('r', :fa);
ALTER TABLE topics RENAME COLUMN owner TO possessor;
SELECT pg_temp.error_of(format('SELECT fence_check(''r'', %s)', :fa));
ALTER TABLE topics RENAME COLUMN possessor TO owner;
-- The table is renamed and moved to another schema, with another table in its place: the bridge still finds it.
CREATE SCHEMA regress_elsewhere;
ALTER TABLE topics SET SCHEMA regress_elsewhere;
ALTER TABLE regress_elsewhere.topics RENAME TO subjects;
CREATE TABLE topics (LIKE regress_elsewhere.subjects INCLUDING ALL);
SELECT fence_check('r', :fa);
SELECT target FROM bridges;
DROP TABLE topics;
ALTER TABLE regress_elsewhere.subjects RENAME TO topics;
ALTER TABLE regress_elsewhere.topics SET SCHEMA public;
DROP SCHEMA regress_elsewhere;
-- Released to the next in line: the row stays the worker's, with a newer fence in its marker.
SELECT (pg_temp.ask('r', :'b', true)).reason;
SELECT owner AS marker FROM topics WHERE topic = 'orders' \gset
SELECT lease_release('r', :fa);
CALL pg_temp.wait_for_lease('r', :'b');
SELECT fence_check('r', fence) FROM lease_acquire('r', :'b');
SELECT owner = :'marker' AS same FROM topics WHERE topic = 'orders';
SELECT lease_release('r', fence) FROM lease_acquire('r', :'b');
CALL pg_temp.wait_for('(SELECT tens_left <= 0 FROM pg_temp.row WHERE topic = ''orders'')');

-- Tables that cannot be bridged to.
CREATE FUNCTION pg_temp.foreign_code() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END';
CREATE FUNCTION pg_temp.same(text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT $1';
CREATE TYPE pg_temp.mood AS ENUM ('good', 'bad');
CREATE TYPE pg_temp.lengths AS RANGE (subtype = float8, multirange_type_name = pg_temp.many_lengths);
-- Makes a table, changes it by these statements, and returns the refusal to bridge to it.
CREATE FUNCTION pg_temp.refusal(changes text, key text DEFAULT 'k') RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    CREATE TABLE t (key text PRIMARY KEY, owner text, until timestamptz, other text DEFAULT pg_temp.same('x'), mood pg_temp.mood);
    INSERT INTO t VALUES ('k');
    EXECUTE changes;
    RAISE SQLSTATE 'ZZ000' USING MESSAGE = pg_temp.error_of(format('SELECT bridge_create_row(''t'', ''t'', %L, ''owner'', ''until'')', key));
EXCEPTION WHEN SQLSTATE 'ZZ000' THEN
    RETURN replace(SQLERRM, E'\nHINT: The row is written by its place, without triggers and the like: take away what is in the way, or keep the columns of the lease in a table of their own.', ' *');
END $$;
SELECT changes, pg_temp.refusal(changes) FROM unnest(ARRAY[
    'SELECT',
    'CREATE TRIGGER x BEFORE INSERT OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION pg_temp.foreign_code()',
    'CREATE TRIGGER x BEFORE UPDATE OF other ON t FOR EACH ROW EXECUTE FUNCTION pg_temp.foreign_code()',
    'CREATE TRIGGER x BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION pg_temp.foreign_code()',
    'CREATE TRIGGER x AFTER UPDATE OF until ON t FOR EACH STATEMENT EXECUTE FUNCTION pg_temp.foreign_code()',
    'CREATE TRIGGER x AFTER UPDATE OF owner ON t FOR EACH STATEMENT EXECUTE FUNCTION pg_temp.foreign_code()',
    'CREATE CONSTRAINT TRIGGER x AFTER UPDATE ON t FOR EACH ROW EXECUTE FUNCTION pg_temp.foreign_code()',
    'CREATE RULE x AS ON UPDATE TO t DO ALSO NOTHING',
    'ALTER TABLE t ENABLE ROW LEVEL SECURITY',
    'ALTER TABLE t ADD CHECK (other <> ''y'')',
    'ALTER TABLE t ADD CHECK (owner <> ''y'')',
    'ALTER TABLE t ADD CHECK (until > ''2020-01-01'')',
    'ALTER TABLE t ADD CHECK (t IS NOT NULL) NOT VALID',
    'UPDATE t SET owner = ''''; ALTER TABLE t ALTER owner SET NOT NULL',
    'ALTER TABLE t ADD made text GENERATED ALWAYS AS (other || ''x'') STORED',
    'ALTER TABLE t ADD EXCLUDE (other WITH =)',
    'CREATE TABLE u (owner text REFERENCES t)',
    'CREATE TABLE u (owner text PRIMARY KEY); INSERT INTO u VALUES (''x''); UPDATE t SET other = ''x''; ALTER TABLE t ADD FOREIGN KEY (other) REFERENCES u',
    'CREATE TABLE u (owner text PRIMARY KEY); ALTER TABLE t ADD FOREIGN KEY (owner) REFERENCES u',
    'CREATE INDEX ON t (until, owner)',
    'CREATE INDEX x ON t (lower(other))',
    'CREATE INDEX x ON t (other) WHERE other > ''a''',
    'CREATE UNIQUE INDEX x ON t (owner)',
    'ALTER TABLE t ADD CONSTRAINT x UNIQUE (other, owner)',
    'ALTER TABLE t ADD CONSTRAINT x UNIQUE (other) DEFERRABLE',
    'CREATE INDEX x ON t (mood)',
    'ALTER TABLE t ADD lengths pg_temp.lengths; CREATE INDEX x ON t USING brin (lengths)',
    'ALTER TABLE t ADD lengths pg_temp.many_lengths; CREATE INDEX x ON t USING gist (lengths)',
    'ALTER TABLE t ADD many int[]; CREATE INDEX x ON t USING gin (many)',
    'ALTER TABLE t ADD CHECK (current_setting(''x.y'', true) IS NULL)',
    'ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (key) DEFERRABLE',
    'ALTER TABLE t DROP CONSTRAINT t_pkey',
    'ALTER TABLE t DROP CONSTRAINT t_pkey; UPDATE t SET other = ''x''; ALTER TABLE t ADD PRIMARY KEY (key, other)',
    'ALTER TABLE t ALTER key TYPE char(1)',
    'ALTER TABLE t ALTER key TYPE bytea USING key::bytea',
    'ALTER TABLE t ALTER owner TYPE bytea USING owner::bytea',
    'ALTER TABLE t ALTER owner TYPE varchar(30)',
    'ALTER TABLE t ALTER owner TYPE varchar(33)',
    'ALTER TABLE t ALTER until TYPE date',
    'ALTER TABLE t DROP owner', 'ALTER TABLE t DROP until',
    'CREATE TABLE u () INHERITS (t)',
    'ALTER TABLE t RENAME TO u; CREATE TABLE t (PRIMARY KEY (key)) INHERITS (u)',
    'ALTER TABLE t RENAME TO u; CREATE TABLE v (LIKE u) PARTITION BY LIST (owner); ALTER TABLE v ATTACH PARTITION u DEFAULT; ALTER TABLE u RENAME TO t',
    'DROP TABLE t; CREATE TABLE t (key text PRIMARY KEY, owner text, until timestamptz) PARTITION BY LIST (key)',
    'DROP TABLE t; CREATE TEMP TABLE t (key text PRIMARY KEY, owner text, until timestamptz)',
    'ALTER TABLE t SET UNLOGGED',
    'ALTER TABLE t RENAME TO u; CREATE VIEW t AS SELECT * FROM u',
    'ALTER TABLE t RENAME TO u; CREATE INDEX t ON u (other)',
    'DELETE FROM t']) AS changes;
SELECT pg_temp.refusal('ALTER TABLE t ALTER key TYPE bigint USING 1', 'abc');
SELECT statement, pg_temp.error_of('SELECT bridge_create_row(' || statement || ')')
FROM unnest(ARRAY['NULL, ''topics'', ''orders'', ''owner'', ''leased_until''', '''x'', NULL, ''orders'', ''owner'', ''leased_until''', '''x'', ''topics'', NULL, ''owner'', ''leased_until''',
                  '''x'', ''topics'', ''orders'', NULL, ''leased_until''', '''x'', ''topics'', ''orders'', ''owner'', NULL', ''''', ''topics'', ''orders'', ''owner'', ''leased_until''',
                  '''x'', ''topics'', ''none'', ''owner'', ''leased_until''', '''x'', ''topics'', ''orders'', ''owner'', ''owner''', '''x'', ''topics'', ''orders'', ''topic'', ''leased_until''',
                  '''x'', ''topics'', ''orders'', ''ctid'', ''leased_until''', '''x'', ''topics'', ''orders'', ''OWNER'', ''leased_until''', '''x'', 4294967295, ''orders'', ''owner'', ''leased_until''',
                  '''r'', ''topics'', ''invoices'', ''owner'', ''leased_until''', '''x'', ''topics'', ''orders'', ''owner'', ''leased_until''',
                  '''x'', ''pg_catalog.pg_class'', ''1'', ''relname'', ''relname''', '''x'', ''eskit_lease._queues'', ''r'', ''owner'', ''ordering''']) AS statement;
BEGIN READ ONLY;
SELECT pg_temp.error_of('SELECT bridge_create_row(''x'', ''topics'', ''orders'', ''owner'', ''leased_until'')');
COMMIT;
SELECT bridge_create_row('x', 'topics', 'invoices', 'owner', 'leased_until');
SELECT bridge_drop('x');

-- Each type of a key, as its type prints it; a time in UTC. The caller's settings do not matter.
SET timezone = 'Asia/Kathmandu';
SET datestyle = 'German';
CREATE TABLE keyed_text (key text COLLATE "C" PRIMARY KEY, owner text, until timestamp);
CREATE TABLE keyed_varchar (key varchar(20) PRIMARY KEY, owner varchar(60), until timestamp NOT NULL);
CREATE TABLE keyed_uuid (key uuid PRIMARY KEY, owner text, until timestamptz);
CREATE TABLE keyed_smallint (key smallint PRIMARY KEY, owner text NOT NULL DEFAULT '', until timestamptz);
CREATE TABLE keyed_integer (key int PRIMARY KEY, owner text, until timestamptz, long text DEFAULT repeat('long ', 1000));
CREATE TABLE keyed_bigint (other text, key bigint PRIMARY KEY, dropped int, owner text, until timestamptz);
ALTER TABLE keyed_bigint DROP COLUMN dropped;
CREATE INDEX ON keyed_integer USING brin (until);
CREATE INDEX ON keyed_bigint USING hash (owner);
INSERT INTO keyed_text VALUES ('a"b');
INSERT INTO keyed_varchar VALUES ('abc', 'gone', timezone('UTC', clock_timestamp()) - interval '1 s');
INSERT INTO keyed_uuid VALUES ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11');
INSERT INTO keyed_smallint VALUES (-7);
INSERT INTO keyed_integer VALUES (42);
INSERT INTO keyed_bigint (key) VALUES (9223372036854775807);
SELECT bridge_create_row(name, ('keyed_' || name)::regclass, key, 'owner', 'until')
FROM (VALUES ('text', 'a"b'), ('varchar', 'abc'), ('uuid', '{A0EEBC999C0B4EF8BB6D6BB9BD380A11}'), ('smallint', ' -7'), ('integer', '0042'), ('bigint', '9223372036854775807')) AS v (name, key);
SELECT resource, target, key FROM bridges WHERE target::text LIKE 'keyed%' ORDER BY 1;
SELECT resource, (pg_temp.ask(resource, :'a', true)).reason FROM bridges WHERE target::text LIKE 'keyed%' ORDER BY 1;
CALL pg_temp.wait_for($$(SELECT count(*) = 6 FROM eskit_lease.bridges WHERE held)$$);
CALL pg_temp.wait_for($$(SELECT count(*) = 6 FROM eskit_lease.leases WHERE state = 'held' AND resource IN (SELECT resource FROM eskit_lease.bridges))$$);
SELECT b.resource, fence_check(b.resource, l.fence) FROM bridges AS b JOIN leases AS l USING (resource) WHERE l.state = 'held' ORDER BY 1;
SELECT regexp_replace(owner, '[0-9]+$', 'N') AS owner, until - timezone('UTC', clock_timestamp()) BETWEEN '15 s' AND '30 s' AS kept FROM keyed_varchar
UNION ALL SELECT regexp_replace(owner, '[0-9]+$', 'N'), until - clock_timestamp() BETWEEN '15 s' AND '30 s' FROM keyed_bigint;
SET enable_seqscan = off;
SELECT count(*) FROM keyed_bigint AS k WHERE owner = (SELECT max(owner) FROM keyed_bigint);
RESET enable_seqscan;
SELECT length(long) FROM keyed_integer;
SELECT count(lease_release(l.resource, l.fence)) FROM leases AS l JOIN bridges AS b USING (resource) WHERE l.state = 'held';
SELECT count(bridge_drop(resource)) FROM bridges WHERE target::text LIKE 'keyed%';
DROP TABLE keyed_text, keyed_varchar, keyed_uuid, keyed_smallint, keyed_integer, keyed_bigint;

-- Privileges: a role that was granted the function may bridge to a table of its own.
CREATE TABLE theirs (topic text PRIMARY KEY, owner text, leased_until timestamptz);
INSERT INTO theirs VALUES ('orders');
ALTER TABLE theirs OWNER TO regress_owner;
SET ROLE regress_owner;
SELECT split_part(pg_temp.error_of('SELECT bridge_create_row(''x'', ''theirs'', ''orders'', ''owner'', ''leased_until'')'), E'\n', 1);
RESET ROLE;
GRANT EXECUTE ON FUNCTION bridge_create_row, bridge_drop TO regress_owner, regress_other;
SET ROLE regress_other;
SELECT pg_temp.error_of('SELECT bridge_create_row(''x'', ''theirs'', ''orders'', ''owner'', ''leased_until'')');
RESET ROLE;
GRANT regress_owner TO regress_other;
SET ROLE regress_other;
SELECT bridge_create_row('x', 'theirs', 'orders', 'owner', 'leased_until');
SELECT bridge_drop('x');
RESET ROLE;

-- A dropped table leaves the bridge and its lease in place.
SELECT bridge_create_row('x', 'theirs', 'orders', 'owner', 'leased_until');
SELECT (pg_temp.ask('x', :'a', true)).reason;
CALL pg_temp.wait_for_lease('x', :'a');
SELECT target::oid AS gone FROM bridges WHERE resource = 'x' \gset
DROP TABLE theirs;
SELECT replace(pg_temp.error_of(format('SELECT fence_check(''x'', %s)', fence)), :'gone', 'N') FROM lease_acquire('x', :'a');
SELECT lease_release('x', fence) FROM lease_acquire('x', :'a');
SELECT bridge_drop('x');

SELECT bridge_drop('r');
SELECT session_close(session) FROM sessions;
DROP TABLE topics CASCADE;
DROP OWNED BY regress_owner, regress_other;
DROP ROLE regress_owner, regress_other;
