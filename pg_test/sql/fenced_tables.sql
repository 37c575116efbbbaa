-- Fenced tables: what may be written after which check, by one connection. The worker is off, so that what is seen is
-- the verbs' own doing. Processes, crashes, dump and restore: e2e.
\i pg_test/sql/include/worker_off.psql
\i pg_test/sql/include/groups.psql
\pset null -
SELECT session AS a FROM session_open('a', '1 hour') \gset
SELECT session AS b FROM session_open('b', '1 hour') \gset
SELECT fence AS f FROM lease_acquire('sub:orders', :'a') \gset
SELECT fence AS o FROM lease_acquire('other', :'a') \gset
CREATE TABLE orders (id int PRIMARY KEY, note text);
INSERT INTO orders VALUES (0, 'before');

SELECT * FROM fenced_tables;
SELECT table_fence('orders', 'sub:orders');
SELECT * FROM fenced_tables;
SELECT tgname, tgtype, tgenabled, pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = 'orders'::regclass;

-- Every way to write without a check.
SELECT pg_temp.error_of(statement)
FROM unnest(ARRAY[
    'INSERT INTO orders VALUES (1)', 'UPDATE orders SET note = ''x''', 'DELETE FROM orders', 'TRUNCATE orders', 'UPDATE orders SET id = id WHERE false',
    'INSERT INTO orders VALUES (0) ON CONFLICT DO NOTHING', 'INSERT INTO orders VALUES (0) ON CONFLICT (id) DO UPDATE SET note = ''x''',
    'MERGE INTO orders USING (VALUES (0)) AS s (i) ON id = i WHEN MATCHED THEN DELETE', 'WITH w AS (INSERT INTO orders VALUES (1)) SELECT 1']) AS statement;
\set VERBOSITY sqlstate
COPY orders FROM stdin;
1	x
\.
\set VERBOSITY default
SELECT * FROM orders;
-- Reading is free, and so is locking.
BEGIN;
SELECT id FROM orders FOR UPDATE;
COMMIT;

-- With the check.
BEGIN;
SELECT fence_check('sub:orders', :f);
INSERT INTO orders VALUES (1, 'one') RETURNING id;
INSERT INTO orders VALUES (1, 'uno') ON CONFLICT (id) DO UPDATE SET note = excluded.note;
UPDATE orders SET note = 'changed' WHERE id = 0;
MERGE INTO orders USING (VALUES (2)) AS s (i) ON id = i WHEN NOT MATCHED THEN INSERT VALUES (i, 'merged');
COPY orders FROM stdin;
3	copied
\.
DELETE FROM orders WHERE id = 0;
COMMIT;
SELECT * FROM orders ORDER BY id;
BEGIN;
SELECT fence_check('sub:orders', :f);
TRUNCATE orders;
ROLLBACK;
-- A write and the check in one statement, in either order.
INSERT INTO orders SELECT 4, 'in one' FROM fence_check('sub:orders', :f);
WITH written AS (INSERT INTO orders VALUES (5, 'in one') RETURNING id) SELECT id, fence_check('sub:orders', :f) FROM written;
-- The check does not count in the next transaction, for another resource, or with a fence that is not current.
SELECT pg_temp.error_of('INSERT INTO orders VALUES (6)');
BEGIN;
SELECT fence_check('other', :o);
SELECT pg_temp.error_of('INSERT INTO orders VALUES (6)');
SELECT pg_temp.error_of(format('INSERT INTO orders SELECT 6 FROM fence_check(%L, %s)', 'sub:orders', :o));
SELECT pg_temp.error_of('INSERT INTO orders VALUES (6)');
SELECT fence_check('sub:orders', :f);
INSERT INTO orders VALUES (6, 'both');
COMMIT;

-- A check counts no more once its savepoint is rolled back.
BEGIN;
SAVEPOINT s;
SELECT fence_check('sub:orders', :f);
INSERT INTO orders VALUES (7, 'rolled back');
ROLLBACK TO s;
SELECT pg_temp.error_of('INSERT INTO orders VALUES (7)');
SAVEPOINT s;
SELECT fence_check('sub:orders', :f);
RELEASE s;
INSERT INTO orders VALUES (7, 'released savepoint');
COMMIT;
-- A check counts no more after the holder's own release, unless a savepoint undoes the release.
BEGIN;
SELECT fence_check('sub:orders', :f);
INSERT INTO orders VALUES (8, 'before the release');
SAVEPOINT s;
SELECT lease_release('sub:orders', :f);
SELECT pg_temp.error_of('INSERT INTO orders VALUES (9)');
SELECT pg_temp.error_of(format('SELECT fence_check(%L, %s)', 'sub:orders', :f));
ROLLBACK TO s;
INSERT INTO orders VALUES (9, 'after it was taken back');
SAVEPOINT s;
SAVEPOINT t;
SELECT lease_release('sub:orders', :f);
RELEASE t;
SELECT pg_temp.error_of('INSERT INTO orders VALUES (10)');
ROLLBACK TO s;
INSERT INTO orders VALUES (10, 'taken back');
SELECT lease_release('sub:orders', :f);
SELECT pg_temp.error_of('INSERT INTO orders VALUES (11)');
-- Acquired again: a new fence, which needs a new check.
SELECT fence AS g FROM lease_acquire('sub:orders', :'a') \gset
SELECT pg_temp.error_of('INSERT INTO orders VALUES (11)');
SELECT fence_check('sub:orders', :g);
INSERT INTO orders VALUES (11, 'new fence');
COMMIT;
SELECT pg_temp.error_of(format('INSERT INTO orders SELECT 12 FROM fence_check(%L, %s)', 'sub:orders', :f));

-- A check counts no more, however the lease is given away: in a bulk release, by force, with the session, by a
-- take-over. After a release with grace the check still counts.
CREATE FUNCTION pg_temp.writes_after(act text, session uuid, fence bigint) RETURNS TABLE (did text, writes text, checks text) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM eskit_lease.fence_check('sub:orders', fence);
    INSERT INTO orders VALUES (100, 'writes');
    BEGIN
        EXECUTE format(act, session, fence) INTO did;
        writes := split_part(pg_temp.error_of('INSERT INTO orders VALUES (101)'), E'\nHINT', 1);
        checks := left(pg_temp.error_of(format('SELECT eskit_lease.fence_check(''sub:orders'', %s)', fence)), 8);
        RAISE SQLSTATE 'P0999';
    EXCEPTION WHEN SQLSTATE 'P0999' THEN
        NULL;
    END;
    INSERT INTO orders VALUES (102, 'writes again');
    DELETE FROM orders WHERE id >= 100;
    RETURN NEXT;
END
$$;
SELECT act, x.* FROM unnest(ARRAY[
    'SELECT eskit_lease.lease_release(''sub:orders'', %2$s)', 'SELECT released FROM eskit_lease.lease_release_many(''{sub:orders}'', %1$L)',
    'SELECT eskit_lease.lease_force_release(''sub:orders'', %2$s, ''why'')', 'SELECT eskit_lease.session_close(%1$L)',
    'SELECT true FROM eskit_lease.session_open(''a'', takeover => true)', 'SELECT eskit_lease.lease_release(''sub:orders'', %2$s, ''1 min'')',
    'SELECT eskit_lease.lease_release(''sub:orders'', %2$s, ''1 min'') AND eskit_lease.lease_release(''sub:orders'', %2$s, ''2 min'')',
    'SELECT eskit_lease.lease_release(''sub:orders'', %2$s, ''1 min'') AND (SELECT reason = ''already_held'' FROM eskit_lease.lease_acquire(''sub:orders'', %1$L))',
    'SELECT eskit_lease.lease_release(''sub:orders'', %2$s, ''1 min'') AND eskit_lease.lease_release(''sub:orders'', %2$s)'
    ]) AS act, pg_temp.writes_after(act, :'a', :g) AS x;
-- A session ends with more leases than one call releases: the worker releases the rest, but their checks count no more.
BEGIN;
SELECT count(*) FROM lease_acquire_many(ARRAY(SELECT 'a' || i FROM generate_series(1, 3000) AS i), :'a');
SELECT fence_check('sub:orders', :g);
SELECT session_close(:'a');
SELECT count(*) > 0 AS left FROM eskit_lease._leases WHERE session = :'a';
SELECT DISTINCT pg_temp.error_of(format('SELECT fence_check(%L, %s)', resource, fence)) FROM (SELECT * FROM eskit_lease._leases WHERE session = :'a' ORDER BY resource DESC LIMIT 3) AS l;
SELECT pg_temp.error_of('INSERT INTO orders VALUES (12)');
ROLLBACK;

-- A stale holder: it expires, and another session takes the lease. A check that it passed before counts to the end of
-- its transaction.
CREATE TABLE short (i int);
SELECT table_fence('short', 'short');
SELECT session AS e FROM session_open('short', '3 s') \gset
SELECT fence AS e_fence FROM lease_acquire('short', :'e') \gset
INSERT INTO short SELECT 1 FROM fence_check('short', :e_fence);
CALL pg_temp.wait_for($$(SELECT state = 'expired' FROM eskit_lease.sessions WHERE consumer = 'short')$$);
SELECT fence AS b_fence FROM lease_acquire('short', :'b') \gset
BEGIN;
SELECT pg_temp.error_of(format('SELECT fence_check(%L, %s)', 'short', :e_fence));
SELECT pg_temp.error_of('INSERT INTO short VALUES (2)');
COMMIT;
INSERT INTO short SELECT 3 FROM fence_check('short', :b_fence);
SELECT * FROM short;
-- The error as a client sees it.
INSERT INTO short VALUES (4);

-- Writes through a user's function, view, rule and cascade, and in a SECURITY DEFINER function.
CREATE FUNCTION pg_temp.work(fence bigint, id int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM eskit_lease.fence_check('sub:orders', fence);
    INSERT INTO orders VALUES (id, 'by a function');
END
$$;
SELECT pg_temp.work(:g, 20);
SELECT pg_temp.error_of(format('SELECT pg_temp.work(%s, 21)', :f));
CREATE VIEW orders_view AS SELECT * FROM orders;
SELECT pg_temp.error_of('INSERT INTO orders_view VALUES (21)');
CREATE TABLE customers (id int PRIMARY KEY);
CREATE TABLE bills (id int PRIMARY KEY, customer int REFERENCES customers ON DELETE CASCADE ON UPDATE CASCADE);
INSERT INTO customers VALUES (1), (2);
INSERT INTO bills VALUES (1, 1), (2, 2);
SELECT table_fence('bills', 'sub:orders');
SELECT pg_temp.error_of(statement)
FROM unnest(ARRAY['DELETE FROM customers', 'UPDATE customers SET id = id + 10', 'TRUNCATE customers CASCADE']) AS statement;
BEGIN;
SELECT fence_check('sub:orders', :g);
DELETE FROM customers WHERE id = 1;
UPDATE customers SET id = 20 WHERE id = 2;
COMMIT;
SELECT * FROM bills;
-- Tables of two resources, checked one after the other.
BEGIN;
SELECT fence_check('sub:orders', :g);
SELECT pg_temp.error_of('WITH o AS (INSERT INTO orders VALUES (30)) INSERT INTO short VALUES (30)');
SELECT fence_check('short', :b_fence);
INSERT INTO orders VALUES (30);
INSERT INTO short VALUES (30);
WITH o AS (INSERT INTO orders VALUES (31)) INSERT INTO short VALUES (31);
COMMIT;
-- Each isolation level; a READ ONLY transaction cannot write anyway.
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT fence_check('sub:orders', :g);
INSERT INTO orders VALUES (32);
COMMIT;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT pg_temp.error_of('INSERT INTO orders VALUES (33)');
SELECT fence_check('sub:orders', :g);
INSERT INTO orders VALUES (33);
COMMIT;
SELECT count(*) FILTER (WHERE id >= 30) FROM orders;
-- The fence also holds under session_replication_role = replica.
SET session_replication_role = replica;
SELECT pg_temp.error_of('INSERT INTO orders VALUES (34)');
RESET session_replication_role;

-- A semaphore: a check of any permit will do.
SELECT semaphore_create('two', 2);
SELECT fence AS s1 FROM lease_acquire('two', :'a') \gset
SELECT fence AS s2 FROM lease_acquire('two', :'b') \gset
CREATE TABLE permits (i int);
SELECT table_fence('permits', 'two');
INSERT INTO permits SELECT 1 FROM fence_check('two', :s1);
INSERT INTO permits SELECT 2 FROM fence_check('two', :s2);
BEGIN;
SELECT fence_check('two', :s1), fence_check('two', :s2);
SELECT lease_release('two', :s1);
INSERT INTO permits VALUES (3);
SELECT lease_release('two', :s2);
SELECT pg_temp.error_of('INSERT INTO permits VALUES (4)');
ROLLBACK;
SELECT * FROM permits;

-- A group: the row's partition is the slot, as it is after BEFORE triggers and with generated columns computed.
SELECT group_create('g', 4, rebalance_timeout => '1 hour');
SELECT group_join('g', :'a') > 0 AS joined;
SELECT max(fence) FILTER (WHERE partition = 0) AS g0, max(fence) FILTER (WHERE partition = 1) AS g1, max(fence) FILTER (WHERE partition = 2) AS g2
FROM group_assignment('g', :'a') \gset
CREATE TABLE totals (k text PRIMARY KEY, cents bigint, p smallint);
SELECT table_fence('totals', 'g', 'p');
SELECT table_name, resource, partition_column, checks_each, complete FROM fenced_tables WHERE resource = 'g';
SELECT tgname, tgenabled, pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = 'totals'::regclass ORDER BY 1;
BEGIN;
SELECT cursor_commit('g', 0, 1, :g0);
INSERT INTO totals VALUES ('a', 1, 0), ('b', 2, 0);
SELECT pg_temp.error_of(statement)
FROM unnest(ARRAY['INSERT INTO totals VALUES (''c'', 1, 1)', 'INSERT INTO totals VALUES (''c'', 1, 0), (''d'', 1, 1)', 'UPDATE totals SET p = 1', 'INSERT INTO totals VALUES (''c'', 1, NULL)',
                  'INSERT INTO totals VALUES (''c'', 1, 4)', 'INSERT INTO totals VALUES (''c'', 1, -1)', 'TRUNCATE totals', 'UPDATE totals SET p = NULL']) AS statement;
SELECT fence_check('g', :g1);
INSERT INTO totals VALUES ('c', 1, 1);
UPDATE totals SET p = 1 - p;
SELECT group_release('g', 1, :g1);
SELECT pg_temp.error_of('DELETE FROM totals WHERE k = ''a''');
DELETE FROM totals WHERE k = 'c';
COMMIT;
SELECT * FROM totals ORDER BY k;
SELECT pg_temp.error_of(statement)
FROM unnest(ARRAY['DELETE FROM totals', 'UPDATE totals SET p = 2', 'UPDATE totals SET cents = 0', 'DELETE FROM totals WHERE false']) AS statement;
BEGIN;
SELECT cursor_ack('g', 2, 1, :g2);
COPY totals FROM stdin;
x	1	2
y	1	2
\.
SELECT pg_temp.error_of('UPDATE totals SET p = 1 WHERE k = ''x''');
SELECT pg_temp.error_of('UPDATE totals SET p = 2 WHERE k = ''a''');
COMMIT;
CREATE FUNCTION pg_temp.misroute() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN NEW.p := 0; RETURN NEW; END$$;
CREATE TRIGGER zzz BEFORE INSERT ON totals FOR EACH ROW EXECUTE FUNCTION pg_temp.misroute();
SELECT pg_temp.error_of(format('INSERT INTO totals SELECT ''z'', 1, 2 FROM fence_check(''g'', %s)', :g2));
INSERT INTO totals SELECT 'z', 1, 2 FROM fence_check('g', :g0);
SELECT * FROM totals ORDER BY k;
CREATE DOMAIN shard AS bigint;
CREATE TABLE computed (k text, p shard GENERATED ALWAYS AS (partition_for(k, 4)) STORED);
SELECT table_fence('computed', 'g', 'p');
SELECT k, partition_for(k, 4) FROM unnest(ARRAY['b', 'd']) AS k;
BEGIN;
SELECT fence_check('g', :g0);
INSERT INTO computed SELECT k FROM (SELECT chr(i) AS k FROM generate_series(97, 122) AS i) AS letters WHERE partition_for(k, 4) = 0;
SELECT pg_temp.error_of('INSERT INTO computed SELECT k FROM (SELECT chr(i) AS k FROM generate_series(97, 122) AS i) AS letters WHERE partition_for(k, 4) = 2');
COMMIT;
SELECT p, count(*) > 0 AS "has rows" FROM computed GROUP BY 1;
-- Fenced by a group without a column: a check of any partition will do.
CREATE TABLE anybody (i int);
SELECT table_fence('anybody', 'g');
INSERT INTO anybody SELECT 1 FROM fence_check('g', :g2);
SELECT pg_temp.error_of('INSERT INTO anybody VALUES (2)');
-- After the column is renamed, writes are refused until the table is fenced again.
ALTER TABLE totals RENAME p TO partition;
SELECT pg_temp.error_of(format('UPDATE totals SET cents = 0 FROM fence_check(''g'', %s)', :g0));
SELECT pg_temp.error_of('SELECT table_fence(''totals'', ''g'', ''partition'')');
SELECT table_unfence('totals'), table_fence('totals', 'g', 'partition');
ALTER TABLE totals ALTER partition TYPE text;
SELECT pg_temp.error_of(format('UPDATE totals SET cents = 0 FROM fence_check(''g'', %s)', :g0));

-- Partitioned tables: writes by way of the parent or of a partition, present or future.
CREATE TABLE events (id int, at int) PARTITION BY RANGE (at);
CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM (0) TO (10);
CREATE TABLE events_2 PARTITION OF events FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (at);
CREATE TABLE events_2_1 PARTITION OF events_2 FOR VALUES FROM (10) TO (15);
SELECT table_fence('events', 'sub:orders');
SELECT * FROM fenced_tables WHERE table_name = 'events'::regclass;
CREATE TABLE events_3 PARTITION OF events FOR VALUES FROM (20) TO (30);
CREATE TABLE events_4 (id int, at int);
ALTER TABLE events ATTACH PARTITION events_4 FOR VALUES FROM (30) TO (40);
SELECT tgrelid::regclass, tgname, tgenabled, tgparentid <> 0 AS inherited FROM pg_trigger WHERE tgrelid IN (SELECT relid FROM pg_partition_tree('events')) ORDER BY 1, 2;
SELECT pg_temp.error_of(statement)
FROM unnest(ARRAY['INSERT INTO events VALUES (1, 1)', 'INSERT INTO events_1 VALUES (1, 1)', 'INSERT INTO events VALUES (1, 11)', 'INSERT INTO events_2_1 VALUES (1, 11)',
                  'INSERT INTO events VALUES (1, 21)', 'INSERT INTO events_3 VALUES (1, 21)', 'INSERT INTO events_4 VALUES (1, 31)',
                  'TRUNCATE events', 'TRUNCATE events_1', 'TRUNCATE events_2', 'TRUNCATE events_2_1']) AS statement;
SELECT complete FROM fenced_tables WHERE table_name = 'events'::regclass;
SELECT pg_temp.error_of('TRUNCATE events_3');
SELECT table_fence('events', 'sub:orders'), table_fence('events', 'sub:orders') AS again;
SELECT complete FROM fenced_tables WHERE table_name = 'events'::regclass;
SELECT pg_temp.error_of('TRUNCATE events_3');
BEGIN;
SELECT fence_check('sub:orders', :g);
INSERT INTO events VALUES (1, 1), (2, 11), (3, 21);
INSERT INTO events_4 VALUES (4, 31);
UPDATE events SET at = at + 10 WHERE id IN (1, 3);
TRUNCATE events_4;
COMMIT;
SELECT tableoid::regclass, * FROM events ORDER BY id;
SELECT pg_temp.error_of(statement) FROM unnest(ARRAY['UPDATE events SET at = at + 1', 'UPDATE events SET at = 1', 'DELETE FROM events']) AS statement;
-- A partition is fenced through its parent, and cannot be fenced or unfenced by itself.
SELECT table_fence('events_1', 'sub:orders');
SELECT pg_temp.error_of(statement) FROM unnest(ARRAY['SELECT table_fence(''events_1'', ''other'')', 'SELECT table_unfence(''events_1'')']) AS statement;
SELECT table_unfence('events'), table_unfence('events', true) AS again;
SELECT count(*) FROM pg_trigger WHERE tgrelid IN (SELECT relid FROM pg_partition_tree('events'));
INSERT INTO events VALUES (9, 9);
-- Only one partition is fenced, also for writes by way of its parent. Then the parent cannot be fenced until that is
-- undone.
SELECT table_fence('events_1', 'other');
SELECT pg_temp.error_of(statement)
FROM unnest(ARRAY['INSERT INTO events VALUES (10, 1)', 'INSERT INTO events_1 VALUES (10, 1)', 'TRUNCATE events_1', 'TRUNCATE events', 'INSERT INTO events VALUES (10, 11)',
                  'SELECT table_fence(''events'', ''sub:orders'')']) AS statement;
SELECT table_unfence('events', true);
SELECT table_name FROM fenced_tables WHERE resource = 'other';
-- Partitioned tables fenced by a column.
CREATE TABLE shards (k text, p int) PARTITION BY LIST (p);
CREATE TABLE shards_0 PARTITION OF shards FOR VALUES IN (0);
CREATE TABLE shards_2 (p int, k text);
ALTER TABLE shards ATTACH PARTITION shards_2 FOR VALUES IN (2);
SELECT table_fence('shards', 'g', 'p');
BEGIN;
SELECT fence_check('g', :g0);
INSERT INTO shards VALUES ('a', 0);
SELECT pg_temp.error_of(statement)
FROM unnest(ARRAY['INSERT INTO shards VALUES (''b'', 2)', 'INSERT INTO shards_2 VALUES (2, ''b'')', 'UPDATE shards SET p = 2', 'TRUNCATE shards_0']) AS statement;
SELECT fence_check('g', :g2);
UPDATE shards SET p = 2;
COMMIT;
SELECT tableoid::regclass, p, k FROM shards;

-- Tables that cannot be fenced.
CREATE TABLE parent (i int);
CREATE TABLE child () INHERITS (parent);
CREATE MATERIALIZED VIEW materialized AS SELECT 1 AS i;
CREATE SEQUENCE numbers;
CREATE FOREIGN DATA WRAPPER nothing;
CREATE SERVER nowhere FOREIGN DATA WRAPPER nothing;
CREATE FOREIGN TABLE away (i int) SERVER nowhere;
CREATE TABLE mixed (i int) PARTITION BY LIST (i);
CREATE FOREIGN TABLE mixed_away PARTITION OF mixed FOR VALUES IN (1) SERVER nowhere;
CREATE TABLE columns (i int, t text, n numeric, v int GENERATED ALWAYS AS (i + 1) STORED);
SELECT pg_temp.error_of(format('SELECT table_fence(%s)', arguments))
FROM unnest(ARRAY[
    '''parent'', ''r''', '''child'', ''r''', '''orders_view'', ''r''', '''materialized'', ''r''', '''numbers'', ''r''', '''away'', ''r''', '''mixed'', ''r''',
    '''orders_pkey'', ''r''', '''pg_catalog.pg_class'', ''r''', '''eskit_lease._leases'', ''r''', '''eskit_lease.leases'', ''r''', '4294967295, ''r''', '''no_such'', ''r''',
    '''orders'', ''other''', '''orders'', ''g'', ''id''', '''computed'', ''g''', '''computed'', ''g'', ''k''',
    'NULL, ''r''', '''columns'', NULL', '''columns'', ''''', '''columns'', repeat(''x'', 256)',
    '''columns'', ''none'', ''i''', '''columns'', ''two'', ''i''', '''columns'', ''g'', ''none''', '''columns'', ''g'', ''''', '''columns'', ''g'', ''ctid''', '''columns'', ''g'', ''t''', '''columns'', ''g'', ''n''']) AS arguments;
SELECT pg_temp.error_of(format('SELECT table_unfence(%s)', arguments)) FROM unnest(ARRAY['NULL', '4294967295', '''no_such''']) AS arguments;
SELECT table_unfence('columns', true), table_unfence('orders_view', true);
SELECT count(*) FROM pg_trigger WHERE tgrelid IN ('columns'::regclass, 'parent'::regclass, 'mixed'::regclass, 'eskit_lease._leases'::regclass);
SELECT table_fence('columns', 'g', 'v'), table_unfence('columns');
BEGIN READ ONLY;
SELECT pg_temp.error_of(statement) FROM unnest(ARRAY['SELECT table_fence(''columns'', ''r'')', 'SELECT table_unfence(''orders'')']) AS statement;
COMMIT;
-- A repeated table_fence changes nothing, except that it enables disabled triggers.
SELECT table_fence('orders', 'sub:orders');
ALTER TABLE orders DISABLE TRIGGER eskit_lease_fence;
SELECT complete FROM fenced_tables WHERE table_name = 'orders'::regclass;
SELECT table_fence('orders', 'sub:orders'), table_fence('orders', 'sub:orders') AS again;
SELECT complete FROM fenced_tables WHERE table_name = 'orders'::regclass;
-- The trigger function in triggers that a user made.
CREATE TABLE by_hand (i int);
CREATE TRIGGER a BEFORE INSERT ON by_hand FOR EACH ROW EXECUTE FUNCTION require_fence('r');
CREATE TRIGGER b AFTER UPDATE ON by_hand EXECUTE FUNCTION require_fence();
CREATE TRIGGER c AFTER DELETE ON by_hand EXECUTE FUNCTION require_fence('r', 'i');
SELECT pg_temp.error_of(statement) FROM unnest(ARRAY['INSERT INTO by_hand VALUES (1)', 'UPDATE by_hand SET i = 1', 'DELETE FROM by_hand', 'SELECT require_fence()']) AS statement;

-- Names with quotes, braces and other special characters.
CREATE SCHEMA "s {table} '";
CREATE TABLE "s {table} '"."t "" {arguments} \ é" (i int, "p '\ é" int);
SELECT table_fence('"s {table} ''"."t "" {arguments} \ é"', E'r \' "\\ {name} é');
SELECT * FROM fenced_tables WHERE table_name::text LIKE '%{table}%';
SELECT pg_temp.error_of($$INSERT INTO "s {table} '"."t "" {arguments} \ é" VALUES (1)$$);
SELECT fence AS w FROM lease_acquire(E'r \' "\\ {name} é', :'a') \gset
INSERT INTO "s {table} '"."t "" {arguments} \ é" SELECT 1 FROM fence_check(E'r \' "\\ {name} é', :w);
SELECT table_unfence('"s {table} ''"."t "" {arguments} \ é"');
SELECT table_fence('"s {table} ''"."t "" {arguments} \ é"', 'g', E'p \'\\ é');
SELECT partition_column FROM fenced_tables WHERE table_name::text LIKE '%{table}%';
INSERT INTO "s {table} '"."t "" {arguments} \ é" SELECT 1, 0 FROM fence_check('g', :g0);
\set VERBOSITY terse
DROP SCHEMA "s {table} '" CASCADE;
\set VERBOSITY default

-- Privileges: the table's owner and members of that role may fence it. A writer needs only the right to call
-- fence_check.
CREATE ROLE regress_owner;
CREATE ROLE regress_member IN ROLE regress_owner;
CREATE ROLE regress_writer;
GRANT CREATE ON SCHEMA public TO regress_owner;
SELECT grant_consumer('regress_owner'), grant_consumer('regress_writer');
SET ROLE regress_owner;
CREATE TABLE theirs (i int);
GRANT ALL ON theirs TO regress_writer;
SELECT table_fence('theirs', 'theirs');
SET ROLE regress_writer;
SELECT pg_temp.error_of(statement)
FROM unnest(ARRAY['SELECT eskit_lease.table_fence(''theirs'', ''mine'')', 'SELECT eskit_lease.table_unfence(''theirs'')', 'INSERT INTO theirs VALUES (1)',
                  'SELECT eskit_lease.table_fence(''pg_class'', ''mine'')', 'SELECT eskit_lease.table_fence(''orders_view'', ''mine'')', 'SET eskit_lease.fence_superusers = off']) AS statement;
SELECT session AS w FROM session_open('w', '1 hour') \gset
SELECT fence AS wf FROM lease_acquire('theirs', :'w') \gset
INSERT INTO theirs SELECT 1 FROM fence_check('theirs', :wf);
SET ROLE regress_member;
SELECT table_unfence('theirs'), table_fence('theirs', 'theirs');
SELECT pg_temp.error_of(statement)
FROM unnest(ARRAY['SET eskit_lease.fence_superusers = off', 'ALTER ROLE regress_member SET eskit_lease.fence_superusers = off']) AS statement;
-- A check counts for the whole transaction, under any role.
BEGIN;
SET LOCAL ROLE regress_writer;
SELECT fence_check('theirs', :wf);
SET LOCAL ROLE regress_owner;
INSERT INTO theirs VALUES (2);
COMMIT;
RESET ROLE;

-- The fence holds for superusers too, unless they turn it off. Their setting, or a superuser's function, exempts no
-- other role.
CREATE FUNCTION public.as_superuser(i int) RETURNS void LANGUAGE sql SECURITY DEFINER AS 'INSERT INTO public.theirs VALUES (i)';
SELECT pg_temp.error_of('INSERT INTO theirs VALUES (3)');
SET eskit_lease.fence_superusers = off;
INSERT INTO theirs VALUES (3);
SELECT as_superuser(4);
SET ROLE regress_owner;
SELECT pg_temp.error_of('INSERT INTO theirs VALUES (5)');
SELECT pg_temp.error_of('SELECT public.as_superuser(5)');
RESET ROLE;
RESET eskit_lease.fence_superusers;
SELECT pg_temp.error_of('SELECT as_superuser(5)');
SELECT i FROM theirs ORDER BY i;

-- The extension cannot be dropped while tables are fenced.
\set VERBOSITY terse
DROP EXTENSION eskit_lease;
SELECT pg_temp.error_of('INSERT INTO theirs VALUES (6)');

SELECT table_unfence('orders'), table_unfence('orders', true) AS again;
INSERT INTO orders VALUES (99);
SELECT count(session_close(session)) FROM sessions;
DROP FUNCTION as_superuser;
DROP TABLE orders, short, bills, customers, permits, totals, computed, anybody, events, shards, theirs, by_hand, columns, mixed, child, parent CASCADE;
DROP DOMAIN shard;
DROP MATERIALIZED VIEW materialized;
DROP SEQUENCE numbers;
DROP FOREIGN DATA WRAPPER nothing CASCADE;
DROP OWNED BY regress_owner, regress_writer;
DROP ROLE regress_member, regress_owner, regress_writer;
SELECT group_leave('g', :'a');
SELECT group_drop('g'), semaphore_drop('two');
SELECT * FROM fenced_tables;
\i pg_test/sql/include/worker_on.psql
