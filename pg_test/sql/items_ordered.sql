-- Work items in order. The worker is off, so that what is seen is the verbs' own doing.
\i pg_test/sql/include/worker_off.psql
\pset null -
-- The items that a session gets, in order; and calls that end an item, named by its payload.
CREATE FUNCTION pg_temp.next(queue text, who uuid, most int DEFAULT 1) RETURNS text LANGUAGE sql AS $$
    SELECT coalesce(string_agg(payload #>> '{}', ' ' ORDER BY id), 'nothing') FROM eskit_lease.item_claim(queue, who, most)
$$;
CREATE FUNCTION pg_temp.add(of text, key text, VARIADIC what text[]) RETURNS int LANGUAGE sql AS $$
    SELECT count(eskit_lease.item_add(of, to_jsonb(w), key))::int FROM unnest(what) AS w
$$;
CREATE FUNCTION pg_temp.done(VARIADIC what text[]) RETURNS int LANGUAGE sql AS $$
    SELECT sum(eskit_lease.item_done(ARRAY[i.id], i.fence))::int FROM eskit_lease.items AS i WHERE i.payload #>> '{}' = ANY (what)
$$;
CREATE FUNCTION pg_temp.unclaim(what text) RETURNS int LANGUAGE sql AS $$
    SELECT eskit_lease.item_unclaim(ARRAY[i.id], i.fence) FROM eskit_lease.items AS i WHERE i.payload #>> '{}' = what
$$;
CREATE FUNCTION pg_temp.fail(what text, retry_in interval) RETURNS boolean LANGUAGE sql AS $$
    SELECT eskit_lease.item_fail(i.id, i.fence, 'error', retry_in) FROM eskit_lease.items AS i WHERE i.payload #>> '{}' = what
$$;
CREATE FUNCTION pg_temp.heads() RETURNS SETOF text LANGUAGE sql AS $$
    SELECT concat_ws(' ', h.key, i.payload #>> '{}', i.state)
    FROM eskit_lease._item_heads AS h LEFT JOIN eskit_lease.items AS i USING (id) ORDER BY h.key
$$;
-- Whether an item is due.
CREATE FUNCTION pg_temp.is_due(what text) RETURNS boolean LANGUAGE sql AS $$
    SELECT clock_timestamp() > run_at FROM eskit_lease.items AS i WHERE i.payload #>> '{}' = what
$$;
SELECT session AS a FROM session_open('a', '1 hour') \gset
SELECT session AS b FROM session_open('b', '1 hour') \gset
SELECT queue_create('k', max_attempts => 3, retry_backoff => '0', ordering => 'key');
SELECT queue_create('f', max_attempts => 3, retry_backoff => '0', ordering => 'fifo');
SELECT queue, ordering FROM queues ORDER BY queue;

-- One item of each key at a time, however many are asked for; items without a key stand alone.
SELECT pg_temp.add('k', 'x', 'x1', 'x2', 'x3'), pg_temp.add('k', 'y', 'y1', 'y2'), pg_temp.add('k', NULL, 'n1', 'n2');
SELECT pg_temp.next('k', :'a', 10);
SELECT pg_temp.next('k', :'a', 10), pg_temp.next('k', :'b', 10);
SELECT pg_temp.heads();
SELECT pg_temp.done('n1', 'x1');
SELECT pg_temp.heads();
SELECT pg_temp.next('k', :'b', 10);
SELECT pg_temp.next('k', :'b', 10);
-- An item is done and the next one claimed in one transaction, which is rolled back, as a whole and in part.
BEGIN;
SELECT pg_temp.done('x2');
SELECT pg_temp.next('k', :'a', 10);
SELECT pg_temp.heads();
ROLLBACK;
SELECT pg_temp.next('k', :'a', 10);
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT pg_temp.done('x2');
SAVEPOINT s;
SELECT pg_temp.next('k', :'a', 10);
ROLLBACK TO s;
SELECT pg_temp.heads();
SELECT pg_temp.next('k', :'a', 10);
SELECT pg_temp.done('x3');
SAVEPOINT t;
SELECT pg_temp.done('y1');
SELECT pg_temp.next('k', :'a', 10);
ROLLBACK TO t;
COMMIT;
SELECT pg_temp.heads();
SELECT pg_temp.next('k', :'a', 10), pg_temp.done('y1', 'n2'), pg_temp.next('k', :'a', 10), pg_temp.done('y2');
SELECT pg_temp.heads();

-- An item holds its key when it is given back, waits for a retry, or is freed by the end of its session. The next item
-- is claimed only once it is done or dead.
SELECT pg_temp.add('k', 'x', 'x1', 'x2', 'x3');
SELECT pg_temp.next('k', :'a');
SELECT pg_temp.unclaim('x1');
SELECT pg_temp.heads();
SELECT pg_temp.next('k', :'b');
SELECT pg_temp.fail('x1', '1 hour');
SELECT pg_temp.next('k', :'a'), pg_temp.next('k', :'b');
SELECT pg_temp.heads();
UPDATE eskit_lease._later SET due = 0;
UPDATE eskit_lease._item_heads SET due = 0;
-- The failed item is due again: a claim finds it by way of the items behind it, and by its own time.
SELECT pg_temp.add('k', 'z', 'z1');
SELECT pg_temp.next('k', :'b', 10);
SELECT attempt FROM items WHERE payload = '"x1"';
SELECT pg_temp.heads();
SELECT pg_temp.done('z1');
SELECT session_close(:'b');
SELECT pg_temp.heads();
SELECT session AS b FROM session_open('b', '1 hour') \gset
SELECT pg_temp.next('k', :'a', 10);
SELECT payload, attempt, state FROM items ORDER BY id;
-- After an item is dead the next one is claimed; a requeue makes the dead item the newest of its key.
SELECT pg_temp.fail('x1', '0');
SELECT payload, attempt FROM dead_items;
SELECT pg_temp.heads();
SELECT pg_temp.next('k', :'b', 10);
SELECT item_requeue(id) FROM dead_items;
SELECT pg_temp.done('x2');
SELECT pg_temp.next('k', :'b', 10);
SELECT pg_temp.done('x3');
SELECT pg_temp.next('k', :'b', 10);
SELECT attempt FROM items WHERE payload = '"x1"';
-- The last attempt ends with its session.
SELECT pg_temp.fail('x1', '0');
SELECT pg_temp.next('k', :'b', 10), pg_temp.fail('x1', '0');
SELECT pg_temp.next('k', :'b', 10);
SELECT pg_temp.add('k', 'x', 'x2');
SELECT pg_temp.next('k', :'a', 10);
SELECT session_close(:'b');
SELECT payload, attempt, error FROM dead_items;
SELECT pg_temp.next('k', :'a', 10);
SELECT pg_temp.heads();
SELECT pg_temp.done('x2');
SELECT session AS b FROM session_open('b', '1 hour') \gset

-- An item added for a later time has its place in the order by that time. Neither it nor a ready item overtakes one
-- that waits for a retry.
SELECT pg_temp.add('k', 'x', 'before');
SELECT item_add('k', '"due"', 'x', clock_timestamp() + interval '0.02 s') > 0 AS added, item_add('k', '"far"', 'x', clock_timestamp() + interval '1 hour') > 0 AS added;
SELECT array_length(item_add_many('k', ARRAY['"n1"', '"n2"']::jsonb[], run_at => clock_timestamp() + interval '0.02 s'), 1);
CALL pg_temp.wait_for($$(SELECT bool_and(pg_temp.is_due(w)) FROM unnest(ARRAY['due', 'n1', 'n2']) AS w)$$);
SELECT pg_temp.add('k', 'x', 'after');
SELECT pg_temp.next('k', :'a', 2), pg_temp.next('k', :'a', 2);
SELECT pg_temp.done('n1', 'n2', 'before');
SELECT pg_temp.next('k', :'a', 10);
SELECT pg_temp.unclaim('due');
SELECT pg_temp.next('k', :'b', 10);
SELECT pg_temp.fail('due', '0');
SELECT pg_temp.next('k', :'b', 10);
SELECT pg_temp.heads();
SELECT pg_temp.done('due');
SELECT pg_temp.next('k', :'b', 10);
SELECT pg_temp.done('after');
SELECT pg_temp.next('k', :'b', 10);
SELECT payload, state FROM items;

-- After a claim is rolled back to a savepoint, the item and the key are as before.
SELECT pg_temp.add('k', 'w', 'w1', 'w2');
BEGIN;
SAVEPOINT s;
SELECT pg_temp.next('k', :'a');
ROLLBACK TO s;
SELECT pg_temp.heads();
SELECT pg_temp.next('k', :'b');
COMMIT;
SELECT pg_temp.heads();
SELECT queue_drop('k', true);
SELECT count(*) FROM eskit_lease._item_heads;

-- fifo: all items share one key, also those without a key.
SELECT pg_temp.add('f', 'x', '1'), pg_temp.add('f', NULL, '2'), pg_temp.add('f', 'y', '3');
SELECT pg_temp.next('f', :'a', 10), pg_temp.next('f', :'b', 10);
SELECT pg_temp.heads();
SELECT pg_temp.fail('1', '0');
SELECT pg_temp.next('f', :'b', 10);
SELECT pg_temp.fail('1', '1 hour');
SELECT pg_temp.next('f', :'b', 10);
UPDATE eskit_lease._later SET due = 0;
UPDATE eskit_lease._item_heads SET due = 0;
SELECT pg_temp.next('f', :'a', 10), pg_temp.unclaim('1'), pg_temp.next('f', :'b', 10), pg_temp.done('1');
SELECT item_add('f', '"4"', run_at => clock_timestamp() + interval '0.01 s') > 0 AS added;
CALL pg_temp.wait_for($$(SELECT pg_temp.is_due('4'))$$);
SELECT pg_temp.add('f', NULL, '5');
SELECT pg_temp.next('f', :'a', 10), pg_temp.done('2'), pg_temp.next('f', :'a', 10), pg_temp.done('3'), pg_temp.next('f', :'a', 10), pg_temp.done('4'), pg_temp.next('f', :'a', 10), pg_temp.done('5'), pg_temp.next('f', :'a', 10);
SELECT count(*) FROM eskit_lease._item_heads;

-- A requeued item is the newest of its key, behind items that were due before. A time in the past counts as the time of
-- the call, and an item is added at the time of its call, however long the statement takes.
SELECT queue_create('line', max_attempts => 1, ordering => 'key');
SELECT pg_temp.add('line', 'x', 'dead');
SELECT pg_temp.next('line', :'a'), pg_temp.fail('dead', '0');
SELECT item_add('line', '"due"', 'x', clock_timestamp() + interval '0.02 s') > 0 AS added;
CALL pg_temp.wait_for($$(SELECT pg_temp.is_due('due'))$$);
SELECT item_requeue(id) FROM dead_items WHERE queue = 'line';
SELECT item_add('line', '"past"', 'x', '2000-01-01') > 0 AS added, cardinality(item_add_many('line', ARRAY['"past too"']::jsonb[], ARRAY['x'], '1999-12-31')) AS many;
SELECT pg_temp.next('line', :'a', 10), pg_temp.done('due'), pg_temp.next('line', :'a', 10), pg_temp.done('dead'), pg_temp.next('line', :'a', 10), pg_temp.done('past');
SELECT pg_temp.next('line', :'a', 10);
SELECT pg_temp.done('past too');
SELECT item_add('line', '"due"', 'x', clock_timestamp() + interval '0.02 s') > 0 AS added;
DO $$
BEGIN
    WHILE NOT pg_temp.is_due('due') LOOP
        PERFORM pg_sleep(0.001);
    END LOOP;
    PERFORM eskit_lease.item_add('line', '"late"', 'x'), eskit_lease.item_add_many('line', ARRAY['"later"']::jsonb[], ARRAY['x']);
END $$;
SELECT pg_temp.next('line', :'a', 10), pg_temp.done('due'), pg_temp.next('line', :'a', 10), pg_temp.done('late'), pg_temp.next('line', :'a', 10), pg_temp.done('later');

-- A queue of a group: one item for each partition that the session owns.
SELECT group_create('g', 4, 'range', '1 hour');
SELECT queue_create('fg', ordering => 'fifo', group_name => 'g'), queue_create('kg', ordering => 'key', group_name => 'g');
SELECT array_length(item_add_many(q, array_agg(to_jsonb(k || n) ORDER BY n), array_agg(k ORDER BY n)), 1) FROM unnest(ARRAY['fg', 'kg']) AS q, unnest(ARRAY['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h']) AS k, generate_series(1, 2) AS n GROUP BY q;
SELECT group_join('g', :'a') > 0 AS joined;
SELECT count(*), count(DISTINCT i.partition) FROM item_claim('fg', :'a', 10) JOIN items AS i USING (id);
SELECT count(*), count(DISTINCT i.partition) FROM item_claim('fg', :'a', 10) JOIN items AS i USING (id);
SELECT string_agg(payload #>> '{}', ' ' ORDER BY key) FROM item_claim('kg', :'a', 10);
SELECT item_done(array_agg(id), fence) FROM items WHERE queue = 'kg' AND state = 'claimed' GROUP BY fence;
SELECT string_agg(payload #>> '{}', ' ' ORDER BY key) FROM item_claim('kg', :'a', 10);
SELECT queue_drop('fg', true), queue_drop('kg', true);
SELECT group_leave('g', :'a'), group_drop('g');
SELECT count(*) FROM eskit_lease._item_heads;

-- A session that got nothing is woken when a key is free again: done, dead, given back, or its claim rolled back.
SELECT queue_create('wake', max_attempts => 1, ordering => 'key');
SELECT pg_temp.add('wake', 'x', 'x1', 'x2', 'x3', 'x4');
SELECT pg_temp.next('wake', :'a');
SELECT pg_temp.next('wake', :'b');
SELECT revision AS r FROM session_heartbeat(:'b') \gset
SELECT pg_temp.done('x1');
SELECT reason FROM session_wait(:'b', :r, '5 s');
SELECT pg_temp.next('wake', :'a'), pg_temp.next('wake', :'b');
SELECT revision AS r FROM session_heartbeat(:'b') \gset
SELECT pg_temp.fail('x2', '0');
SELECT reason FROM session_wait(:'b', :r, '5 s');
BEGIN;
SELECT pg_temp.next('wake', :'a'), pg_temp.next('wake', :'b');
ROLLBACK;
SELECT revision AS r FROM session_heartbeat(:'b') \gset
SELECT pg_temp.next('wake', :'a'), pg_temp.next('wake', :'b');
SELECT pg_temp.unclaim('x3');
SELECT reason FROM session_wait(:'b', :r, '5 s');
SELECT pg_temp.next('wake', :'b');

SELECT queue_drop(queue, true) FROM queues ORDER BY queue;
SELECT (SELECT count(*) FROM eskit_lease._items) AS items, (SELECT count(*) FROM eskit_lease._later) AS later, (SELECT count(*) FROM eskit_lease._item_heads) AS heads, (SELECT count(*) FROM eskit_lease._claims) AS claims;
SELECT count(session_close(session)) FROM sessions;
\i pg_test/sql/include/worker_on.psql
