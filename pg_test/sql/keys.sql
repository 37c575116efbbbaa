-- The key functions, whose values people store, index and lock: they never change, in any server encoding.
\i pg_test/sql/include/helpers.psql
\pset null -

SELECT group_lock_key('default'), group_lock_key('flydocs-workers'), group_lock_key('café'), group_lock_key('');
SELECT advisory_lock_id('sub:orders'), advisory_lock_id('exec:order-123'), advisory_lock_id(''), advisory_lock_id('café');
SELECT group_lock_key(NULL), advisory_lock_id(NULL), partition_for(NULL, 4), partition_for('a', NULL);

-- The same by PostgreSQL's own means: the first eight bytes of the SHA-256 of the UTF-8 text.
SELECT count(*) AS differ
FROM (VALUES ('default'), ('café'), (''), (repeat('é', 500000)), (repeat('x', 1048576)), (E'a\nb\tc'), ('🦀')) AS v (name)
WHERE group_lock_key(name)
   <> ('x' || encode(substr(sha256(convert_to(name, 'UTF8')), 1, 8), 'hex'))::bit(64)::bigint;

-- FNV-1a 64 by hand, with numeric because SQL has no unsigned integers.
CREATE FUNCTION pg_temp.fnv1a(name text) RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE
    bytes bytea := convert_to(name, 'UTF8');
    hash numeric := 14695981039346656037;
    low int;
BEGIN
    FOR i IN 0 .. length(bytes) - 1 LOOP
        low := mod(hash, 256)::int;
        hash := mod((hash - low + (low # get_byte(bytes, i))) * 1099511628211, 18446744073709551616);
    END LOOP;
    RETURN hash;
END
$$;
WITH v (name) AS (VALUES ('sub:orders'), ('café'), (''), (repeat('é', 500)), (E'a\nb\tc'), ('🦀'), ('a'), ('b'), ('c'))
SELECT count(*) FILTER (WHERE advisory_lock_id(name)
                        <> CASE WHEN fnv1a >= 9223372036854775808 THEN fnv1a - 18446744073709551616 ELSE fnv1a END) AS ids_differ,
       count(*) FILTER (WHERE partition_for(name, 7) <> mod(fnv1a, 7)
                           OR partition_for(name, 2147483647) <> mod(fnv1a, 2147483647)) AS partitions_differ
FROM v, LATERAL (SELECT pg_temp.fnv1a(name) AS fnv1a) AS f;

-- Long text, compressed or not, inline or out of line.
CREATE TEMP TABLE long_text (name text);
INSERT INTO long_text
SELECT repeat('x', 1048576) UNION ALL SELECT string_agg(md5(i::text), '' ORDER BY i) FROM generate_series(1, 32768) AS i;
SELECT octet_length(name), group_lock_key(name) = group_lock_key(name || '') AS same, advisory_lock_id(name), partition_for(name, 16)
FROM long_text ORDER BY 3;

-- Partitions: from 0 to partitions - 1, all of them used, evenly.
SELECT min(p), max(p), count(DISTINCT p), min(n) > 700 AND max(n) < 1300 AS even
FROM (SELECT partition_for('key-' || i, 10) AS p, count(*) AS n FROM generate_series(1, 10000) AS i GROUP BY 1) AS s;
SELECT count(*) FILTER (WHERE partition_for('key-' || i, 2147483647) < 0) AS negative,
       count(*) FILTER (WHERE partition_for('key-' || i, 1) <> 0) AS not_the_only_one
FROM generate_series(1, 10000) AS i;
SELECT pg_temp.error_of(format('SELECT partition_for(%L, %s)', 'key', n)) FROM unnest(ARRAY[0, -1, -2147483648]) AS n;

-- Equal ranges of all uuids, in their order.
SELECT left(uuid, 4) AS uuid, partition_of_uuid(rpad(uuid, 32, right(uuid, 1))::uuid, 8)
FROM unnest(ARRAY['0000', '1fff', '2000', '3fff', '4000', '7fff', '8000', 'bfff', 'c000', 'dfff', 'e000', 'ffff']) AS uuid;
SELECT n, partition_of_uuid('ffffffff-ffff-ffff-ffff-ffffffffffff', n) FROM unnest(ARRAY[1, 3, 32768, 2147483647]) AS n;
SELECT partition_of_uuid('55555555-5555-5555-5555-555555555555', 3), partition_of_uuid('55555555-5555-5555-5555-555555555556', 3);
SELECT partition_of_uuid(NULL, 8), partition_of_uuid('ffffffff-ffff-ffff-ffff-ffffffffffff', NULL);
SELECT pg_temp.error_of(format('SELECT partition_of_uuid(gen_random_uuid(), %s)', n)) FROM unnest(ARRAY[0, -1, -2147483648]) AS n;
-- The same by PostgreSQL's own means: for a power of two, the first bits.
SELECT count(*) FILTER (WHERE partition_of_uuid(id, 1024) <> ('x' || left(id::text, 8))::bit(10)::int) AS differ,
       count(DISTINCT partition_of_uuid(id, 10)) AS used
FROM (SELECT gen_random_uuid() AS id FROM generate_series(1, 1000)) AS s;

-- The functions in an index.
CREATE TEMP TABLE keyed (name text);
CREATE INDEX keyed_partition ON keyed (partition_for(name, 8));
CREATE INDEX keyed_key ON keyed (group_lock_key(name), advisory_lock_id(name));
INSERT INTO keyed SELECT 'name-' || i FROM generate_series(1, 1000) AS i;
INSERT INTO keyed VALUES (NULL);
SET enable_seqscan = off;
SET enable_bitmapscan = off;
EXPLAIN (COSTS off) SELECT name FROM keyed WHERE group_lock_key(name) = group_lock_key('name-7');
SELECT name FROM keyed WHERE group_lock_key(name) = group_lock_key('name-7') AND advisory_lock_id(name) = advisory_lock_id('name-7');
SELECT count(*) FROM keyed WHERE partition_for(name, 8) = 3;
RESET enable_seqscan;
RESET enable_bitmapscan;
SELECT count(*) FROM keyed WHERE partition_for(name, 8) = 3;

-- As advisory locks: shared, exclusive, released; and how pg_locks shows them.
SELECT pg_try_advisory_lock(group_lock_key('g')), pg_try_advisory_lock(advisory_lock_id('g'));
SELECT k.mode,
       (k.classid::bigint << 32 | k.objid::bigint) = CASE k.mode WHEN 'ExclusiveLock' THEN group_lock_key('g') END AS group_lock,
       k.objsubid
FROM pg_locks AS k
WHERE k.locktype = 'advisory' AND k.pid = pg_backend_pid() AND (k.classid::bigint << 32 | k.objid::bigint) = group_lock_key('g');
SELECT pg_advisory_unlock(group_lock_key('g')), pg_advisory_unlock(advisory_lock_id('g')), count(*)
FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();

-- The same in a database that is not UTF-8, where names of resources and consumers mean the same too.
CREATE DATABASE eskit_latin1 TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C';
\c eskit_latin1
CREATE EXTENSION eskit_lease;
\i pg_test/sql/include/helpers.psql
SHOW server_encoding;
SELECT octet_length('café') AS bytes_here, group_lock_key('café'), advisory_lock_id('café'), partition_for('café', 1000);
SELECT group_lock_key('default'), group_lock_key('flydocs-workers'), group_lock_key('');
SELECT advisory_lock_id('sub:orders'), advisory_lock_id('exec:order-123'), advisory_lock_id('');

SELECT session AS a FROM session_open('café-ñandú') \gset
SELECT session AS b FROM session_open('garçon') \gset
SELECT * FROM pg_temp.ask('reçu', :'a');
SELECT * FROM pg_temp.ask('reçu', :'b', true);
SELECT fence AS f FROM lease_acquire('reçu', :'a') \gset
SELECT held, reason FROM lease_renew('reçu', :f);
SELECT fence_check('reçu', :f);
SELECT resource, state, consumer, waiters FROM leases;
SELECT resource, consumer, holder FROM waiters;
SELECT consumer, leases, waiting_for FROM sessions ORDER BY consumer;
SELECT lease_release('reçu', :f);
SELECT resource, state, consumer, waiters FROM leases;
SELECT held, reason FROM lease_renew('reçu', :f);
SELECT resource, granted, holder, reason FROM lease_acquire_many('{é,è,reçu,é}', :'a');
SELECT * FROM lease_release_many('{é,è,reçu}', :'a');
-- 255 bytes are counted in UTF-8, so that a name that is good here is good everywhere.
SELECT granted, reason FROM pg_temp.ask(repeat('é', 127) || 'e', :'a');
SELECT pg_temp.error_of(format('SELECT lease_acquire(%L, %L)', repeat('é', 128), :'a'));
SELECT pg_temp.error_of(format('SELECT session_open(%L)', repeat('é', 128)));
SELECT session_close(:'a'), session_close(:'b');

\c regression
DROP DATABASE eskit_latin1;
