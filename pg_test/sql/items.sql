-- Work items. The worker is off, so that what is seen is the verbs' own doing.
\i pg_test/sql/include/worker_off.psql
\pset null -
-- The next items of a session, with what differs from run to run left out.
CREATE FUNCTION pg_temp.next(queue text, who uuid, most int DEFAULT 1)
RETURNS TABLE (key text, payload jsonb, attempt int, fenced boolean) LANGUAGE sql AS $$
    SELECT key, payload, attempt, fence > 1::bigint << 40 FROM eskit_lease.item_claim(queue, who, most)
$$;
SELECT session AS a FROM session_open('a', '1 hour') \gset
SELECT session AS b FROM session_open('b', '1 hour') \gset
SELECT queue_create('q', max_attempts => 3, retry_backoff => '1 hour');
SELECT queue, ordering, max_attempts, retry_backoff, group_name, claims, items, later, dead, owner = current_user AS mine FROM queues;

-- An empty queue gives nothing; then items come in the order of adding.
SELECT * FROM item_claim('q', :'a');
SELECT item_add('q', '{"n": 1}', 'one') AS one \gset
SELECT item_add('q', '{"n": 2}') AS two \gset
SELECT array_length(item_add_many('q', ARRAY['3', '"four"', 'null']::jsonb[], ARRAY['three', NULL, 'five']), 1);
SELECT state, key, payload, attempt, consumer FROM items ORDER BY id;
SELECT id = :one AS is_one, key, payload, attempt, fence AS f1 FROM item_claim('q', :'a') \gset
SELECT :'is_one', :'key', :'payload', :'attempt';
SELECT * FROM pg_temp.next('q', :'b', 2);
SELECT state, key, payload, attempt, consumer, session IN (:'a', :'b') AS handle, fence = :f1 AS f1 FROM items ORDER BY id;
SELECT fence AS f2 FROM items WHERE id = :two \gset
SELECT queue, claims, items, later, dead FROM queues;

-- item_done takes the claim's fence, and finishes all items or none.
SELECT item_done('{}', :f1);
SELECT pg_temp.error_of(format('SELECT item_done(ARRAY[%s, %s], %s)', :one, :two, :f1)) LIKE 'LF001: claim under fence FENCE is no longer valid%is not one of those%' AS refused;
SELECT item_done(ARRAY[:one, :one], :f1) AS "once";
SELECT pg_temp.error_of(format('SELECT item_done(ARRAY[%s], %s)', :one, :f1));
SELECT item_done(ARRAY[:two], :f2);
SELECT regexp_replace(pg_temp.error_of(format('SELECT item_done(ARRAY[%s], %s)', :two, :f2)), 'Item (\d+|FENCE)', 'Item N');
SELECT state, key, payload, consumer FROM items ORDER BY id;
SELECT count(*) FROM eskit_lease._claims;
SELECT id AS three FROM items WHERE key = 'three' \gset
BEGIN;
SELECT item_done(ARRAY[:three], :f2);
SELECT count(*) FROM eskit_lease._claims;
ROLLBACK;
SELECT state, key, consumer FROM items WHERE id = :three;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SAVEPOINT s;
SELECT item_done(ARRAY[:three], :f2);
ROLLBACK TO s;
SELECT item_done(ARRAY[:three], :f2);
COMMIT;
SELECT count(*) FROM eskit_lease._claims;

-- An item given back keeps its place, and the attempt does not count. The former fence is stale, even if the same
-- session claims the item again.
SELECT id AS four, payload, attempt, fence AS f4 FROM item_claim('q', :'a') \gset
SELECT :'payload', :'attempt';
SELECT item_unclaim(ARRAY[:four], :f4);
SELECT item_claim.id = :four AS again, attempt, fence > :f4 AS newer, fence AS g4 FROM item_claim('q', :'a') \gset
SELECT :'again', :'attempt', :'newer';
SELECT pg_temp.error_of(format('SELECT item_done(ARRAY[%s], %s)', :four, :f4));
-- The former fence is stale even if its claim still has another item.
SELECT array_agg(id ORDER BY id) AS ids, min(fence) AS f5 FROM item_claim('q', :'b', 10) \gset
SELECT item_add('q', '6') AS six \gset
SELECT min(fence) AS f6 FROM item_claim('q', :'a', 10) \gset
SELECT item_unclaim(ARRAY[:four], :g4);
SELECT item_add('q', '7') AS seven \gset
SELECT array_agg(id ORDER BY id) = ARRAY[:four, :seven]::bigint[] AS in_its_place, min(fence) AS f7 FROM item_claim('q', :'a', 10) \gset
SELECT :'in_its_place';
SELECT item_unclaim(ARRAY[:four], :f7);
SELECT id = :four AS is_four, fence AS h4 FROM item_claim('q', :'a') \gset
SELECT replace(regexp_replace(pg_temp.error_of(format('SELECT item_done(ARRAY[%s], %s)', :four, :f7)), 'Item (\d+|FENCE)', 'Item N'), 'FENCE', 'F');

-- A failed item is retried after the backoff, twice as long each time, or after the caller's delay; it is dead after
-- the last attempt.
SELECT item_fail(:four, :h4, 'no luck');
SELECT state, attempt, error, round(extract(epoch FROM run_at - clock_timestamp()) / 3600) AS hours, fence FROM items WHERE id = :four;
SELECT * FROM item_claim('q', :'a');
SELECT item_fail(:seven, :f7, 'again', '0');
SELECT state, attempt, error FROM items WHERE id = :seven;
SELECT id = :seven AS is_seven, attempt, fence AS h7 FROM item_claim('q', :'a', 10) \gset
SELECT :'is_seven', :'attempt';
SELECT error FROM items WHERE id = :seven;
SELECT item_fail(:seven, :h7, 'again', '0');
SELECT attempt, fence AS i7 FROM item_claim('q', :'a', 10) \gset
SELECT :'attempt';
BEGIN;
SELECT item_fail(:seven, :i7, repeat('é', 8000), '0') AS "the last";
SELECT length(error) FROM dead_items;
ROLLBACK;
SELECT item_fail(:seven, :i7, 'for good', '0') AS "the last";
SELECT queue, id = :seven AS seven, key, payload, attempt, error, died_at >= added_at AS later FROM dead_items;
SELECT count(*) FROM items WHERE id = :seven;
SELECT pg_temp.error_of(format('SELECT item_fail(%s, %s, %L)', :seven, :i7, 'late'));
-- A requeued item starts again as the newest.
SELECT item_requeue(:seven);
SELECT state, attempt, error FROM items WHERE id = :seven;
SELECT * FROM dead_items;
SELECT id = :seven AS is_seven, attempt, fence AS j7 FROM item_claim('q', :'a', 10) \gset
SELECT :'is_seven', :'attempt';
SELECT item_done(ARRAY[:seven], :j7);
SELECT item_done(ARRAY[:six], :f6);

-- No item is claimed before its time.
SELECT item_add('q', '"later"', run_at => clock_timestamp() + interval '1 hour') AS later \gset
SELECT item_add('q', '"now"', run_at => clock_timestamp() - interval '1 hour') AS now \gset
SELECT array_length(item_add_many('q', ARRAY['"soon"']::jsonb[], run_at => clock_timestamp() + interval '1 ms'), 1);
CALL pg_temp.wait_for($$clock_timestamp() > (SELECT min(run_at) FROM eskit_lease.items WHERE payload = '"soon"')$$);
SELECT payload, attempt FROM item_claim('q', :'a', 10) ORDER BY 1;
SELECT payload, state FROM items WHERE payload IN ('"later"', '"now"', '"soon"') ORDER BY 1;

-- A rollback undoes an added item and a claim. The claim's items are free for every session then.
SELECT queue_create('r');
BEGIN;
SELECT item_add('r', '1') > 0 AS added;
SELECT payload FROM item_claim('r', :'a', 10);
ROLLBACK;
SELECT payload FROM item_claim('r', :'a', 10);
SELECT array_length(item_add_many('r', ARRAY['1', '2', '3']::jsonb[]), 1);
BEGIN;
SELECT payload FROM item_claim('r', :'a', 2) ORDER BY 1;
SAVEPOINT s;
SELECT payload FROM item_claim('r', :'a', 2) ORDER BY 1;
ROLLBACK TO s;
SELECT payload, fence AS three FROM item_claim('r', :'b', 2) \gset
SELECT :'payload';
SELECT payload FROM item_claim('r', :'b', 2);
ROLLBACK;
SELECT payload FROM item_claim('r', :'b', 10) ORDER BY 1;
SELECT payload FROM item_claim('r', :'b', 10);
-- A transaction claims an item, finishes it, looks for more, and is rolled back.
SELECT item_add('r', '4') AS i \gset
BEGIN;
SELECT fence AS f FROM item_claim('r', :'a') \gset
SELECT item_done(ARRAY[:i], :f);
SELECT payload FROM item_claim('r', :'a');
ROLLBACK;
SELECT payload FROM item_claim('r', :'a');

-- The end of a session frees its claims, and no others; the attempt counts. An item in its last attempt is then dead.
SELECT queue_create('d', max_attempts => 2);
SELECT session AS c FROM session_open('c', '1 hour') \gset
SELECT array_length(item_add_many('d', ARRAY['1', '2', '3', '4']::jsonb[]), 1);
SELECT payload FROM item_claim('d', :'c', 2) ORDER BY 1;
SELECT payload FROM item_claim('d', :'b') ORDER BY 1;
SELECT min(fence) AS f FROM items WHERE consumer = 'c' \gset
SELECT array_agg(id) AS ids FROM items WHERE consumer = 'c' \gset
BEGIN;
SELECT session_close(:'c');
ROLLBACK;
SELECT payload, state, attempt, consumer FROM items WHERE queue = 'd' ORDER BY id;
SELECT session_close(:'c');
SELECT payload, state, attempt, consumer FROM items WHERE queue = 'd' ORDER BY id;
SELECT pg_temp.error_of(format('SELECT item_done(%L, %s)', :'ids', :f));
SELECT payload, attempt FROM item_claim('d', :'a', 10) ORDER BY 1;
SELECT session AS c FROM session_open('c', '1 s') \gset
SELECT array_length(item_add_many('d', ARRAY['5', '6']::jsonb[]), 1);
SELECT payload, attempt FROM item_claim('d', :'c', 10) ORDER BY 1;
SELECT min(fence) AS f, array_agg(id) AS ids FROM items WHERE consumer = 'c' \gset
CALL pg_temp.wait_for($$EXISTS (SELECT FROM eskit_lease.sessions WHERE consumer = 'c' AND state = 'expired')$$);
SELECT payload, state, attempt, consumer FROM items WHERE queue = 'd' AND id = ANY (:'ids') ORDER BY id;
SELECT pg_temp.error_of(format('SELECT item_done(%L, %s)', :'ids', :f));
SELECT pg_temp.error_of(format('SELECT item_claim(%L, %L)', 'd', :'c'));
-- The next claim frees such items; otherwise a sweep does.
SELECT payload, attempt FROM item_claim('d', :'b', 10) ORDER BY 1;
SELECT session_close(:'b');
SELECT payload, attempt, error FROM dead_items WHERE queue = 'd' ORDER BY id;
SELECT payload, state FROM items WHERE queue = 'd' ORDER BY id;
SELECT session AS b FROM session_open('b', '1 s') \gset
SELECT payload, attempt FROM item_claim('d', :'b', 10) ORDER BY 1;
CALL pg_temp.wait_for($$EXISTS (SELECT FROM eskit_lease.sessions WHERE consumer = 'b' AND state = 'expired')$$);
SELECT ended > 0 AS ended FROM session_sweep();
SELECT payload, attempt, error FROM dead_items WHERE queue = 'd' ORDER BY id;
SELECT count(*) FROM eskit_lease._claims AS c WHERE NOT EXISTS (SELECT FROM eskit_lease._sessions AS s WHERE s.session = c.session);

-- A take-over inherits no claims: they end with the session that has them.
SELECT queue_create('t');
SELECT session AS p FROM session_open('successor', '1 hour') \gset
SELECT item_add('t', '1') AS t \gset
SELECT fence AS f FROM item_claim('t', :'p') \gset
SELECT reason FROM lease_acquire('held', :'p');
SELECT session AS p FROM session_open('successor', '1 hour', takeover => true) \gset
SELECT pg_temp.error_of(format('SELECT item_done(ARRAY[%s], %s)', :t, :f));
SELECT id = :t AS t, attempt FROM item_claim('t', :'p');

-- An item whose claim has no row, as after a restore, counts as free.
SELECT queue_create('restored');
SELECT item_add('restored', '1') > 0 AS added;
UPDATE eskit_lease._items SET claim = 1 WHERE queue = (SELECT number FROM eskit_lease._queues WHERE queue = 'restored');
SELECT state FROM items WHERE queue = 'restored';
SELECT payload FROM item_claim('restored', :'a');

-- An added item wakes sessions whose last claim got fewer items than they asked for.
SELECT queue_create('wake');
SELECT session AS w FROM session_open('w', '1 hour') \gset
SELECT * FROM item_claim('wake', :'w');
SELECT revision AS r FROM session_heartbeat(:'w') \gset
SELECT item_add('wake', '1', run_at => clock_timestamp() + interval '1 hour') > 0 AS later;
SELECT revision > :r AS woken FROM session_heartbeat(:'w');
SELECT item_add('wake', '1') > 0 AS added;
SELECT reason FROM session_wait(:'w', :r, '5 s');
SELECT revision AS r FROM session_heartbeat(:'w') \gset
SELECT item_add('wake', '2') > 0 AS added;
SELECT revision > :r AS "is not hungry" FROM session_heartbeat(:'w');

-- A session claims only items of partitions that it owns.
SELECT group_create('g', 4, 'range', '1 hour');
SELECT queue_create('bound', group_name => 'g');
SELECT session AS m FROM session_open('m', '1 hour') \gset
SELECT session AS n FROM session_open('n', '1 hour') \gset
SELECT array_length(item_add_many('bound', array_agg(to_jsonb(k)), array_agg(k)), 1) FROM unnest(ARRAY['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h']) AS k;
SELECT key, partition = partition_for(key, 4) AS right FROM items WHERE queue = 'bound' ORDER BY 1;
SELECT pg_temp.error_of(format('SELECT item_claim(''bound'', %L)', :'m'));
SELECT group_join('g', :'m') > 0 AS joined, group_join('g', :'n') > 0 AS joined;
SELECT group_release('g', partition, fence) FROM group_assignment('g', :'m') WHERE state = 'revoking';
SELECT partition FROM group_assignment('g', :'m');
SELECT key, partition_for(key, 4) IN (0, 1) AS its FROM item_claim('bound', :'m', 10) ORDER BY 1;
SELECT key, partition_for(key, 4) IN (2, 3) AS its FROM item_claim('bound', :'n', 10) ORDER BY 1;
SELECT group_leave('g', :'m'), group_leave('g', :'n');
SELECT pg_temp.error_of($$SELECT group_resize('g', 2)$$);
SELECT pg_temp.error_of($$SELECT group_drop('g')$$);
SELECT item_done(array_agg(id), fence) FROM items WHERE queue = 'bound' GROUP BY fence;
SELECT group_resize('g', 2);
SELECT queue_drop('bound'), group_drop('g');

-- No partition starves, whatever else the connection claims: two sessions and two queues claim in turns.
SELECT group_create('fair', 4, 'range', '1 hour');
SELECT queue_create('fair', group_name => 'fair'), queue_create('too', group_name => 'fair');
SELECT group_join('fair', :'m') > 0 AS joined, group_join('fair', :'n') > 0 AS joined;
SELECT group_release('fair', partition, fence) FROM group_assignment('fair', :'m') WHERE state = 'revoking';
SELECT count(*) FILTER (WHERE session = :'m') AS m, count(*) FILTER (WHERE session = :'n') AS n FROM group_members, group_assignment('fair', session)
WHERE group_name = 'fair';
SELECT array_length(item_add_many(queue, array_fill('{}'::jsonb, ARRAY[1600]), (SELECT array_agg(n::text) FROM generate_series(1, 1600) AS n)), 1)
FROM unnest(ARRAY['fair', 'too']) AS queue;
CREATE TEMP TABLE had AS
SELECT queue, partition_for(c.key, 4) AS partition FROM generate_series(1, 160) AS n, unnest(ARRAY['fair', 'too']) AS queue,
unnest(ARRAY[:'m', :'n']::uuid[]) AS who, item_claim(queue, who, least(n, 1)) AS c;
SELECT queue, partition, count(*) > 20 AS served FROM had GROUP BY 1, 2 ORDER BY 1, 2;
SELECT group_leave('fair', :'m'), group_leave('fair', :'n');
SELECT queue_drop('fair', true), queue_drop('too', true), group_drop('fair');

-- A claim ends with the item that brings its payloads to 16 MiB, however they were added. A session that then waits for
-- more is answered at once.
SELECT queue_create('large'), queue_create('large key', ordering => 'key');
CREATE FUNCTION pg_temp.large(queue text, how_many int, run_at timestamptz DEFAULT NULL) RETURNS int LANGUAGE sql AS $$
    SELECT array_length(eskit_lease.item_add_many(queue, array_agg(to_jsonb(n || repeat('x', 1 << 19))), array_agg(n::text), run_at), 1)
    FROM generate_series(1, how_many) AS n
$$;
SELECT pg_temp.large('large', 40), pg_temp.large('large key', 40);
SELECT revision AS r FROM session_heartbeat(:'m') \gset
SELECT count(*) FROM item_claim('large', :'m', 1000);
SELECT reason FROM session_wait(:'m', :r, '1 min');
SELECT count(*) FROM item_claim('large', :'m', 1000);
SELECT revision AS r FROM session_heartbeat(:'m') \gset
SELECT reason FROM session_wait(:'m', :r, '1 ms');
SELECT count(*) FROM item_claim('large key', :'m', 1000);
SELECT count(*) FROM item_claim('large key', :'m', 1000);
SELECT pg_temp.large('large', 40, clock_timestamp() + '1 hour'), pg_temp.large('large key', 40, clock_timestamp() + '1 hour');
-- Their time comes; a sweep discards the floors, as after a restore.
WITH due AS (UPDATE eskit_lease._later SET due = 1 WHERE queue IN (SELECT number FROM eskit_lease._queues WHERE queue LIKE 'large%') RETURNING id)
SELECT count(*) FROM due;
SELECT ended IS NOT NULL AS swept FROM session_sweep();
SELECT count(*) FROM item_claim('large', :'m', 1000);
SELECT count(*) FROM item_claim('large', :'m', 1000);
-- Each key has a head, which is the item claimed.
SELECT item_done(array_agg(id), fence) FROM items WHERE queue = 'large key' AND state = 'claimed' GROUP BY fence ORDER BY 1;
SELECT count(*) FROM item_claim('large key', :'m', 1000);
SELECT count(*) FROM item_claim('large key', :'m', 1000);
SELECT queue_drop('large', true), queue_drop('large key', true);

-- Items are added, claimed and finished in more savepoints than a transaction has notes; some are rolled back.
SELECT queue_create('nested');
DO $$
DECLARE
    who uuid := (SELECT session FROM eskit_lease.session_open('nested', '1 min'));
    claimed record;
BEGIN
    FOR n IN 1..1200 LOOP
        BEGIN
            BEGIN
                PERFORM eskit_lease.item_add('nested', to_jsonb(n));
                IF n % 3 = 0 THEN
                    RAISE division_by_zero;
                END IF;
            EXCEPTION WHEN division_by_zero THEN NULL;
            END;
            IF n % 5 = 0 THEN
                RAISE division_by_zero;
            END IF;
        EXCEPTION WHEN division_by_zero THEN NULL;
        END;
    END LOOP;
    COMMIT;
    FOR n IN 1..400 LOOP
        BEGIN
            SELECT * INTO claimed FROM eskit_lease.item_claim('nested', who);
            PERFORM eskit_lease.item_done(ARRAY[claimed.id], claimed.fence);
            IF n % 4 = 0 THEN
                RAISE division_by_zero;
            END IF;
        EXCEPTION WHEN division_by_zero THEN NULL;
        END;
    END LOOP;
END $$;
SELECT count(*), count(*) FILTER (WHERE (payload #>> '{}')::int % 15 IN (0, 3, 5, 6, 9, 10, 12)) AS wrong FROM items WHERE queue = 'nested';
SELECT count(*) FROM item_claim('nested', :'m', 1000);
SELECT queue_drop('nested', true);

-- A claim looks only at partitions in which an item may be claimed.
SELECT group_create('wide', 300, 'range', '1 hour');
SELECT queue_create('wide', group_name => 'wide'), queue_create('wide key', ordering => 'key', group_name => 'wide');
SELECT group_join('wide', :'m') > 0 AS joined;
SELECT count(*) FROM group_assignment('wide', :'m') WHERE state = 'owned';
CREATE FUNCTION pg_temp.looks() RETURNS bigint LANGUAGE sql AS $$
    SELECT sum(pg_stat_get_xact_numscans(index)) FROM unnest(ARRAY['eskit_lease._items_pkey', 'eskit_lease._later_pkey']::regclass[]) AS index
$$;
SELECT count(*) FROM unnest(ARRAY['wide', 'wide key']) AS queue, item_claim(queue, :'m');
BEGIN;
SELECT pg_temp.looks() AS looks \gset
SELECT count(*) FROM unnest(ARRAY['wide', 'wide key']) AS queue, item_claim(queue, :'m');
SELECT pg_temp.looks() - :looks AS looks;
COMMIT;
-- A claim finds an item again after it was added, came due, was given back, or was claimed and rolled back.
SELECT array_length(item_add_many('wide', ARRAY['1', '2', '3']::jsonb[], ARRAY['a', 'b', 'c']), 1), item_add('wide key', '1', 'a') > 0 AS added;
BEGIN;
SELECT pg_temp.looks() AS looks \gset
SELECT count(*) FROM item_claim('wide', :'m', 10);
SELECT count(*) FROM item_claim('wide', :'m', 10);
SELECT pg_temp.looks() - :looks < 30 AS few;
ROLLBACK;
SELECT count(*) FROM item_claim('wide key', :'m', 10);
SELECT count(*), min(fence) AS f, array_agg(id) AS ids FROM item_claim('wide', :'m', 10) \gset
SELECT :count;
SELECT count(*) FROM item_claim('wide', :'m', 10);
SELECT item_unclaim(:'ids', :f);
SELECT count(*), min(fence) AS f, array_agg(id) AS ids FROM item_claim('wide', :'m', 10) \gset
SELECT :count;
SELECT item_fail(id, :f, 'again', '1 s') FROM unnest(:'ids'::bigint[]) AS id;
SELECT count(*) FROM item_claim('wide', :'m', 10);
CALL pg_temp.wait_for($$clock_timestamp() > (SELECT max(run_at) FROM eskit_lease.items WHERE queue = 'wide')$$);
SELECT count(*) FROM item_claim('wide', :'m', 10);
SELECT group_leave('wide', :'m');
SELECT queue_drop('wide', true), queue_drop('wide key', true), group_drop('wide');

-- Refusals, which change nothing.
SELECT session AS z FROM session_open('z', '1 hour') \gset
SELECT session_drain(:'z');
CREATE TEMP TABLE before AS SELECT (SELECT string_agg(i::text, ',' ORDER BY i.id) FROM eskit_lease._items AS i) AS items, (SELECT string_agg(q::text, ',' ORDER BY queue) FROM eskit_lease._queues AS q) AS queues;
SELECT regexp_replace(pg_temp.error_of(format(statement, :'a', :'z')), 'Item (\d+|FENCE)', 'Item N') AS error
FROM unnest(ARRAY[
    $$SELECT queue_create(NULL)$$, $$SELECT queue_create('')$$, $$SELECT queue_create(repeat('x', 256))$$, $$SELECT queue_create('q')$$,
    $$SELECT queue_create('x', 0)$$, $$SELECT queue_create('x', NULL)$$, $$SELECT queue_create('x', retry_backoff => '-1 s')$$, $$SELECT queue_create('x', retry_backoff => NULL)$$,
    $$SELECT queue_create('x', ordering => 'lifo')$$, $$SELECT queue_create('x', ordering => NULL)$$,
    $$SELECT queue_create('x', group_name => 'nope')$$, $$SELECT queue_create('x', group_name => '')$$,
    $$SELECT queue_alter('nope', 1)$$, $$SELECT queue_alter('q', 0)$$, $$SELECT queue_alter(NULL)$$, $$SELECT queue_drop('nope')$$, $$SELECT queue_drop('q')$$, $$SELECT queue_drop('q', NULL)$$,
    $$SELECT item_add('nope', '1')$$, $$SELECT item_add(NULL, '1')$$, $$SELECT item_add('q', NULL)$$, $$SELECT item_add('q', '1', '')$$, $$SELECT item_add('q', '1', repeat('x', 256))$$,
    $$SELECT item_add('q', '1', run_at => 'infinity')$$, $$SELECT item_add('q', to_jsonb(repeat('x', 1048576)))$$,
    $$SELECT item_add_many('q', NULL)$$, $$SELECT item_add_many('q', ARRAY['1', NULL]::jsonb[])$$, $$SELECT item_add_many('q', ARRAY['1']::jsonb[], ARRAY['a', 'b'])$$, $$SELECT item_add_many('q', ARRAY['1']::jsonb[], ARRAY[''])$$,
    $$SELECT item_add_many('q', array_fill('1'::jsonb, ARRAY[100001]))$$, $$SELECT item_add_many('nope', '{}')$$,
    $$SELECT item_claim('nope', %1$L)$$, $$SELECT item_claim(NULL, %1$L)$$, $$SELECT item_claim('q', NULL)$$, $$SELECT item_claim('q', %1$L, 0)$$, $$SELECT item_claim('q', %1$L, 1001)$$, $$SELECT item_claim('q', %1$L, NULL)$$,
    $$SELECT item_claim('q', '00000000-0000-0000-0000-000000000000')$$, $$SELECT item_claim('q', %2$L)$$,
    $$SELECT item_done(NULL, 1)$$, $$SELECT item_done('{1}', NULL)$$, $$SELECT item_done('{1,NULL}', 1)$$, $$SELECT item_done('{1}', 1)$$, $$SELECT item_done(array_fill(1::bigint, ARRAY[1001]), 1)$$,
    $$SELECT item_fail(NULL, 1, 'e')$$, $$SELECT item_fail(1, NULL, 'e')$$, $$SELECT item_fail(1, 1, NULL)$$, $$SELECT item_fail(1, 1, 'e', '-1 s')$$, $$SELECT item_fail(1, 1, 'e', '1 year')$$, $$SELECT item_fail(1, 1, 'e')$$,
    $$SELECT item_unclaim(NULL, 1)$$, $$SELECT item_unclaim('{1}', NULL)$$, $$SELECT item_unclaim('{1}', 1)$$,
    $$SELECT item_requeue(NULL)$$, $$SELECT item_requeue(1)$$]) AS statement;
SELECT (SELECT string_agg(i::text, ',' ORDER BY i.id) FROM eskit_lease._items AS i) = items AS items, (SELECT string_agg(q::text, ',' ORDER BY queue) FROM eskit_lease._queues AS q) = queues AS queues FROM before;
SELECT queue_create('large');
SELECT item_add('large', to_jsonb(repeat('x', 1000000))) > 0 AS added, item_add('large', to_jsonb(repeat('y', 10000))) > 0 AS added;
SELECT length(payload #>> '{}') FROM item_claim('large', :'a');
SELECT length(payload #>> '{}') FROM item_claim('large', :'a');
SELECT octet_length(payload::text) FROM items WHERE queue = 'large' ORDER BY id;
BEGIN READ ONLY;
SELECT pg_temp.error_of($$SELECT item_add('q', '1')$$);
SELECT pg_temp.error_of(format($$SELECT item_claim('q', %L)$$, :'a'));
ROLLBACK;

-- Another role's queue and session.
CREATE ROLE regress_owner;
CREATE ROLE regress_else;
SELECT grant_consumer('regress_owner'), grant_consumer('regress_else');
SET ROLE regress_owner;
SELECT queue_create('mine', 1);
SELECT session AS o FROM session_open('o', '1 hour') \gset
SELECT item_add('mine', '1') AS i \gset
SELECT fence AS f FROM item_claim('mine', :'o') \gset
SET ROLE regress_else;
SELECT pg_temp.error_of(format(statement, :'o', :i, :f)) FROM unnest(ARRAY[
    $$SELECT queue_alter('mine', 2)$$, $$SELECT queue_drop('mine', true)$$, $$SELECT item_claim('mine', %1$L)$$, $$SELECT item_done('{%2$s}', %3$s)$$, $$SELECT item_fail(%2$s, %3$s, 'e')$$,
    $$SELECT item_unclaim('{%2$s}', %3$s)$$]) AS statement;
SET ROLE regress_owner;
SELECT item_fail(:i, :f, 'e');
SET ROLE regress_else;
SELECT split_part(pg_temp.error_of(format('SELECT item_requeue(%s)', :i)), E'\n', 1);
SET ROLE regress_owner;
SELECT queue_alter('mine', 5, '2 s');
SELECT item_requeue(:i);
RESET ROLE;
SELECT max_attempts, retry_backoff, items, dead FROM queues WHERE queue = 'mine';
-- A sweep finds items that an administrator has copied into an empty queue.
SELECT session AS c FROM session_open('copier') \gset
SELECT queue_create('copied');
SELECT cardinality(item_add_many('copied', '{1,2}')) AS added;
SELECT sum(item_done(ARRAY[id], fence)) AS done FROM item_claim('copied', :'c', 3);
INSERT INTO eskit_lease._items (queue, partition, place, id, added_at, payload) SELECT number, 0, 1, 1, now(), '3' FROM eskit_lease._queues WHERE queue = 'copied';
SELECT payload FROM item_claim('copied', :'c');
SELECT count(*) FROM session_sweep();
SELECT payload FROM item_claim('copied', :'c');
SELECT queue_drop(queue, true) FROM queues ORDER BY queue;
SELECT (SELECT count(*) FROM eskit_lease._items) AS items, (SELECT count(*) FROM eskit_lease._later) AS later, (SELECT count(*) FROM eskit_lease._dead_items) AS dead, (SELECT count(*) FROM eskit_lease._claims) AS claims;
SELECT count(*) > 0 AS closed FROM (SELECT session_close(session) FROM sessions) AS s;
DROP OWNED BY regress_owner, regress_else;
DROP ROLE regress_owner, regress_else;
SELECT handed_over, more FROM session_sweep();
SELECT count(*) FROM sessions;
\i pg_test/sql/include/worker_on.psql
