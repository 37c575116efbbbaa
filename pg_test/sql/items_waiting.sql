-- Many items that wait for others of their key: claims pass over them, and the call that finishes an item finds the
-- next. The worker is off.
\i pg_test/sql/include/worker_off.psql
\pset null -
-- How many items a session gets, and those of some keys.
CREATE FUNCTION pg_temp.next(who uuid, most int) RETURNS text LANGUAGE sql AS $$
    SELECT concat(count(*), ': ', string_agg(payload #>> '{}', ' ' ORDER BY payload #>> '{}') FILTER (WHERE key IN ('1', '50', 'well')))
    FROM eskit_lease.item_claim('w', who, most)
$$;
CREATE FUNCTION pg_temp.done(VARIADIC what text[]) RETURNS bigint LANGUAGE sql AS $$
    SELECT sum(eskit_lease.item_done(ARRAY[i.id], i.fence)) FROM eskit_lease.items AS i WHERE i.state = 'claimed' AND i.payload #>> '{}' = ANY (what)
$$;
CREATE FUNCTION pg_temp.all_done() RETURNS bigint LANGUAGE sql AS $$
    SELECT sum(eskit_lease.item_done(ARRAY[i.id], i.fence)) FROM eskit_lease.items AS i WHERE i.state = 'claimed'
$$;
CREATE FUNCTION pg_temp.all_fail(retry_in interval) RETURNS bigint LANGUAGE sql AS $$
    SELECT count(eskit_lease.item_fail(i.id, i.fence, 'error', retry_in)) FROM eskit_lease.items AS i WHERE i.state = 'claimed'
$$;
-- Adds an item to each of the keys from 1 to 50.
CREATE FUNCTION pg_temp.add(what text, due timestamptz DEFAULT NULL) RETURNS bigint LANGUAGE sql AS $$
    SELECT count(eskit_lease.item_add('w', to_jsonb(k || what), k::text, due)) FROM generate_series(1, 50) AS k
$$;
-- How many rows of ready items this connection has looked at.
CREATE FUNCTION pg_temp.looked_at() RETURNS bigint LANGUAGE sql AS $$
    SELECT pg_stat_get_xact_tuples_fetched('eskit_lease._items_pkey'::regclass)
$$;
SELECT session AS a FROM session_open('a', '1 hour') \gset
SELECT session AS b FROM session_open('b', '1 hour') \gset
SELECT queue_create('w', max_attempts => 3, retry_backoff => '0', ordering => 'key');
SELECT pg_temp.add('a'), pg_temp.add('b'), pg_temp.add('c');
SELECT pg_temp.next(:'a', 50);
SELECT pg_temp.all_fail('1 hour');
-- The first claim looks at all waiting items, the next one at none; a healthy key is served, in order.
SELECT pg_temp.next(:'a', 50);
BEGIN;
SELECT pg_temp.looked_at() AS before \gset
SELECT pg_temp.next(:'a', 50), pg_temp.looked_at() - :before < 10 AS passed;
COMMIT;
SELECT item_add('w', to_jsonb('well ' || n), 'well') > 0 AS added FROM generate_series(1, 3) AS n;
BEGIN;
SELECT pg_temp.looked_at() AS before \gset
SELECT pg_temp.next(:'a', 50), pg_temp.looked_at() - :before < 10 AS passed;
COMMIT;
SELECT pg_temp.next(:'b', 50);
SELECT pg_temp.done('well 1');
SELECT pg_temp.next(:'b', 50);
SELECT pg_temp.done('well 2');
SELECT pg_temp.next(:'b', 50);
SELECT pg_temp.done('well 3');
-- Their time comes. They are finished, some in a savepoint or transaction that is rolled back. The next ones are
-- claimed, each once.
UPDATE eskit_lease._later SET due = 0;
UPDATE eskit_lease._item_heads SET due = 0;
-- The items are below the floors, which a sweep discards.
SELECT count(*) FROM session_sweep();
SELECT pg_temp.next(:'a', 50), pg_temp.next(:'b', 50);
BEGIN;
SELECT pg_temp.all_done();
ROLLBACK;
SELECT pg_temp.next(:'b', 50);
BEGIN;
SAVEPOINT s;
SELECT pg_temp.done('1a', '50a');
ROLLBACK TO s;
SELECT pg_temp.done('1a');
COMMIT;
SELECT pg_temp.next(:'b', 50);
SELECT pg_temp.done('1b');
SELECT pg_temp.all_done();
SELECT pg_temp.next(:'b', 50);
SELECT pg_temp.next(:'a', 50);
-- An item is dead with its session, or failed for good: the next one is claimed.
SELECT pg_temp.all_fail('0');
SELECT pg_temp.next(:'b', 50);
SELECT pg_temp.all_fail('0');
SELECT pg_temp.next(:'b', 50), pg_temp.next(:'a', 50);
SELECT session_close(:'b');
SELECT pg_temp.next(:'a', 50);
SELECT count(*) FROM dead_items;
SELECT pg_temp.all_done();
SELECT (SELECT count(*) FROM items) AS left;

-- An item that has become due waits, too, and has its place among those added before and after.
SELECT pg_temp.add('a'), pg_temp.add('b'), pg_temp.add('due', clock_timestamp() + interval '0.05 s');
SELECT pg_temp.next(:'a', 50), pg_temp.next(:'a', 50);
CALL pg_temp.wait_for($$(SELECT bool_and(run_at < clock_timestamp()) FROM items WHERE state = 'later')$$);
SELECT pg_temp.add('c');
SELECT pg_temp.next(:'a', 50), pg_temp.next(:'a', 50);
SELECT pg_temp.all_done();
SELECT pg_temp.next(:'a', 50);
SELECT pg_temp.all_done();
SELECT pg_temp.next(:'a', 50);
SELECT pg_temp.next(:'a', 50);
SELECT pg_temp.all_done();
SELECT pg_temp.next(:'a', 50);
SELECT pg_temp.next(:'a', 50);
SELECT pg_temp.all_done();
SELECT pg_temp.next(:'a', 50);
SELECT (SELECT count(*) FROM items) AS left, (SELECT count(*) FROM eskit_lease._item_heads) AS heads;

-- After a sweep has discarded the floors, claims get the same items.
SELECT pg_temp.add('a'), pg_temp.add('b'), pg_temp.next(:'a', 50), pg_temp.next(:'a', 50);
SELECT count(*) FROM session_sweep();
SELECT pg_temp.next(:'a', 50);
SELECT pg_temp.all_done();
SELECT pg_temp.next(:'a', 50);
SELECT pg_temp.all_done();
SELECT pg_temp.next(:'a', 50);

SELECT queue_drop('w', true);
SELECT count(session_close(session)) FROM sessions;
\i pg_test/sql/include/worker_on.psql
