-- partition_assign: who gets which partition, as a pure function of the members and of the present owners.
\i pg_test/sql/include/helpers.psql
\pset format unaligned
\pset tuples_only on
\pset null -

-- range: neighbouring partitions, by the byte order of the members, regardless of the present owners.
SELECT partition_assign('range', members::text[], array_fill(NULL::text, ARRAY[8]))
FROM unnest(ARRAY['{a}', '{a,c}', '{a,b,c}', '{c,a,b}', '{a,b,c,d,e}', '{a,b,c,d,e,f,g,h,i,j}', '{é,z,Z,""}']) AS members;
SELECT partition_assign('range', '{a,b}', '{b,b,b,a,gone,NULL}');

-- sticky: as few partitions move as balance allows. None has an owner yet; one member joins, then another; one leaves;
-- one replaces another.
SELECT partition_assign('sticky', '{a,b}', array_fill(NULL::text, ARRAY[8]));
SELECT partition_assign('sticky', '{a,b,c}', '{a,a,a,a,b,b,b,b}');
SELECT partition_assign('sticky', '{d,c,b,a}', '{a,a,a,c,b,b,b,c}');
SELECT partition_assign('sticky', '{a,c,d}', '{a,a,d,c,b,b,d,c}');
SELECT partition_assign('sticky', '{a,c,e}', '{a,a,d,c,a,c,d,c}');
-- A member that owns more partitions keeps the larger share; otherwise the larger shares go by the order of the ids.
SELECT partition_assign('sticky', '{a,b}', '{a,b,b}');
SELECT partition_assign('sticky', '{a,b}', '{NULL,b,b}');
SELECT partition_assign('sticky', '{d,c,b,a}', '{d,d}');
SELECT partition_assign('sticky', '{b,""}', '{"",NULL,"",gone}');
-- A balanced assignment stays.
SELECT partition_assign('sticky', '{a,b,c}', '{c,a,b,a,c,b,b}');

-- In a group the larger shares go by lots, regardless of the present owners; a member that leaves moves only its own.
SELECT array_agg(m ORDER BY group_lock_key('orders:' || m)) AS lots FROM unnest('{a,b,c,d}'::text[]) AS m;
SELECT partition_assign('sticky', '{d,c,b,a}', '{a}', 'orders'), partition_assign('sticky', '{a,b,c,d}', '{NULL,NULL,NULL,NULL,NULL}', 'orders');
SELECT partition_assign('sticky', members, partition_assign('sticky', '{a,b,c,d}', '{a,a,a,a,a,a}', 'orders'), 'orders')
FROM unnest(ARRAY['{"m":["a","b","c","d"]}', '{"m":["b","c","d"]}', '{"m":["a","c","d"]}', '{"m":["a","b","d"]}', '{"m":["a","b","c"]}']::jsonb[]) AS j,
     LATERAL (SELECT array_agg(e) FROM jsonb_array_elements_text(j -> 'm') AS e) AS v (members);
SELECT partition_assign('range', '{a,b,c,d}', '{a,NULL}', 'orders') = partition_assign('range', '{a,b,c,d}', '{a,NULL}') AS "range has none";
-- A hundred groups of one partition, and four members in each. One member dies, another comes.
WITH first AS (
    SELECT g, partition_assign('sticky', '{w1,w2,w3,w4}', '{w1}', g) AS owners FROM (SELECT 'orders-' || n FROM generate_series(1, 100) AS n) AS v (g)
), died AS (SELECT g, partition_assign('sticky', '{w1,w2,w4}', owners, g) AS owners FROM first
), came AS (SELECT g, partition_assign('sticky', '{w1,w2,w4,w5}', owners, g) AS owners FROM died)
SELECT step, min(n) >= low AND max(n) <= high AS fair, count(*) AS members
FROM (SELECT 1, 15, 35, owners[1], count(*) FROM first GROUP BY 4 UNION ALL SELECT 2, 20, 46, owners[1], count(*) FROM died GROUP BY 4
      UNION ALL SELECT 3, 15, 35, owners[1], count(*) FROM came GROUP BY 4) AS v (step, low, high, owner, n)
GROUP BY step, low, high ORDER BY 1;

-- Without members no partition has an owner, not even its present one.
SELECT partition_assign(assignor, '{}', '{a,NULL,b}') FROM unnest(ARRAY['range', 'sticky']) AS assignor;

-- An array of any shape is read as a list, and the answer begins at 1.
SELECT partition_assign('sticky', '{{b,a},{d,c}}', '[0:1][1:2]={{a,b},{NULL,c}}'), array_dims(partition_assign('sticky', '{a}', '[5:6]={a,b}'));

-- The assignment is balanced, and does not depend on the order of the members, up to the limits.
WITH given AS MATERIALIZED (
    SELECT *, (SELECT array_agg(i::text) FROM generate_series(1, members) AS i) AS up,
           (SELECT array_agg(i::text ORDER BY i DESC) FROM generate_series(1, members) AS i) AS down,
           (SELECT array_agg((p::bigint * p % 1500)::text) FROM generate_series(1, partitions) AS p) AS owners
    FROM unnest(ARRAY['range', 'sticky']) AS assignor, (VALUES (1, 32768), (7, 1), (7, 100), (1000, 32768), (100000, 32768)) AS v (members, partitions)
), answers AS MATERIALIZED (
    SELECT *, partition_assign(assignor, up, owners) AS assigned, partition_assign(assignor, down, owners) AS again FROM given
)
SELECT assignor, members, partitions,
       (SELECT sum(n) = partitions AND count(*) = least(members, partitions) AND max(n) - min(n) <= 1
        FROM (SELECT count(*) AS n FROM unnest(assigned) AS owner GROUP BY owner) AS s) AS balanced,
       assigned = again AS same
FROM answers ORDER BY 1, 2, 3;

-- Refusals.
CREATE FUNCTION pg_temp.refused(VARIADIC arguments text[]) RETURNS SETOF text LANGUAGE sql AS $$
    SELECT argument || E'\n    ' || replace(pg_temp.error_of(format('SELECT eskit_lease.partition_assign(%s)', argument)), E'\n', E'\n    ')
    FROM unnest(arguments) AS argument
$$;
SELECT pg_temp.refused(
    'NULL, ''{a}'', ''{NULL}''', '''range'', NULL, ''{NULL}''', '''range'', ''{a}'', NULL', '''range'', ''{a,NULL}'', ''{NULL}''',
    '''roundrobin'', ''{a}'', ''{NULL}''', '''Range'', ''{a}'', ''{NULL}''', ''''', ''{a}'', ''{NULL}''',
    '''sticky'', ''{b,a,c,a}'', ''{NULL}''', '''range'', ''{"",""}'', ''{NULL}''',
    '''sticky'', ''{a}'', ''{NULL}'', NULL', '''range'', ''{a}'', ''{}''', '''range'', ''{}'', ''{}''', '''range'', ''{a}'', array_fill(NULL::text, ARRAY[32769])',
    '''range'', array_fill(''same''::text, ARRAY[100001]), ''{NULL}''');
-- The answer is larger than an array can hold: an error, which changes nothing.
SELECT pg_temp.refused('''range'', ARRAY[repeat(''x'', 1048576)], array_fill(NULL::text, ARRAY[32768])');

-- The planner folds the call to a constant.
EXPLAIN (COSTS off, VERBOSE) SELECT partition_assign('range', '{a,b}', '{NULL,NULL,NULL}');

-- The same where text is not UTF-8.
CREATE DATABASE eskit_assign TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C';
\c eskit_assign
CREATE EXTENSION eskit_lease;
\i pg_test/sql/include/helpers.psql
SHOW server_encoding;
SELECT partition_assign('range', '{é,z,ÿ,a}', array_fill(NULL::text, ARRAY[4]));
SELECT assigned, octet_length(assigned[1]) AS bytes_here FROM partition_assign('sticky', '{garçon,é}', '{é,é,é,NULL}') AS a (assigned);
SELECT split_part(pg_temp.error_of('SELECT partition_assign(''sticky'', ''{é,é}'', ''{NULL}'')'), E'\n', 1);

\c regression
DROP DATABASE eskit_assign;
