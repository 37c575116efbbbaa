-- Under SERIALIZABLE no verb that sessions call takes a predicate lock on a table or index of the extension, so
-- transactions conflict only through the caller's own tables. Locks on sequences do not count, as writes to them never
-- conflict.
\i pg_test/sql/include/worker_off.psql
CREATE FUNCTION pg_temp.locked() RETURNS text LANGUAGE sql AS $$
    SELECT coalesce(string_agg(DISTINCT c.relname, ' ' ORDER BY c.relname), '-')
    FROM pg_locks AS l JOIN pg_class AS c ON c.oid = l.relation
    WHERE l.mode = 'SIReadLock' AND l.pid = pg_backend_pid() AND c.relnamespace = 'eskit_lease'::regnamespace AND c.relkind <> 'S'
$$;
SELECT semaphore_create('permits', 3);
SELECT group_create('parts', 2);
SELECT queue_create('work', max_attempts => 2, retry_backoff => '0');
SELECT queue_create('mortal', max_attempts => 1);
SELECT queue_create('lines', ordering => 'key');
SELECT queue_create('shared', group_name => 'parts');
CREATE TABLE public.own (id int PRIMARY KEY);
INSERT INTO public.own SELECT generate_series(1, 10);
ANALYZE;
SELECT session AS a FROM session_open('a', '1 hour') \gset
SELECT session AS b FROM session_open('b', '1 hour') \gset
SELECT session AS c FROM session_open('c', '1 hour') \gset
SET default_transaction_isolation TO serializable;

-- Sessions.
BEGIN;
SELECT session AS d FROM session_open('d', '1 hour') \gset
SELECT alive FROM session_heartbeat(:'d');
SELECT session_drain(:'d');
SELECT session_close(:'d');
SELECT pg_temp.locked();
COMMIT;

-- Leases, places in line, grace.
BEGIN;
SELECT fence AS f FROM lease_acquire('r', :'a') \gset
SELECT count(*) FROM lease_acquire_many('{r1,r2,r3}', :'a');
SELECT reason FROM lease_acquire('r', :'b', true);
SELECT reason FROM lease_acquire('r', :'c', true);
SELECT lease_cancel('r', :'c');
COMMIT;
BEGIN;
SELECT held FROM lease_renew('r', :f);
SELECT fence_check('r', :f);
SELECT pg_temp.locked();
COMMIT;
BEGIN;
SELECT lease_release('r', :f);
SELECT count(*) FROM lease_release_many('{r1,r2}', :'a');
SELECT fence AS f3 FROM lease_acquire('r3', :'a') \gset
SELECT lease_release('r3', :f3, '1 hour');
SELECT reason FROM lease_acquire('r3', :'a');
SELECT lease_release('r3', :f3, '1 hour');
SELECT fence AS fl FROM lock_acquire('lock', 'host', '1 hour') \gset
SELECT lease_release('lock', :fl);
SELECT pg_temp.locked();
COMMIT;

-- Semaphores.
BEGIN;
SELECT fence AS fp FROM lease_acquire('permits', :'a') \gset
SELECT reason FROM lease_acquire('permits', :'b');
SELECT lease_release('permits', :fp);
SELECT pg_temp.locked();
COMMIT;

-- Take-over.
BEGIN;
SELECT session AS c FROM session_open('c', '1 hour', takeover => true) \gset
SELECT session AS a FROM session_open('a', '1 hour', takeover => true) \gset
SELECT pg_temp.locked();
COMMIT;

-- Groups and cursors.
BEGIN;
SELECT group_join('parts', :'a') IS NOT NULL AS joined;
SELECT group_join('parts', :'b') IS NOT NULL AS joined;
COMMIT;
SELECT partition AS part, fence AS pf FROM group_assignment('parts', :'a') LIMIT 1 \gset
BEGIN;
SELECT count(*) > 0 FROM group_assignment('parts', :'a');
SELECT cursor_position('parts', :part);
SELECT cursor_commit('parts', :part, 10, :pf);
SELECT cursor_ack('parts', :part, 11, :pf);
SELECT cursor_ack('parts', :part, 13, :pf);
SELECT cursor_ack('parts', :part, 12, :pf);
SELECT cursor_report_head('parts', :part, 20);
SELECT cursor_report_head('parts', :part, 21);
SELECT pg_temp.locked();
COMMIT;
BEGIN;
SELECT group_release('parts', :part, :pf);
SELECT group_leave('parts', :'b');
SELECT pg_temp.locked();
COMMIT;

-- Items.
BEGIN;
SELECT item_add('work', '1') > 0;
SELECT count(*) FROM item_add_many('work', '{2,3}');
SELECT item_add('work', '4', run_at => '2000-01-01') > 0;
SELECT item_add('lines', '5', key => 'k') > 0;
SELECT item_add('shared', '6', key => 'k') > 0;
SELECT pg_temp.locked();
COMMIT;
BEGIN;
SELECT array_agg(id) AS ids, min(fence) AS fi, (array_agg(id))[1] AS i1, (array_agg(id))[2] AS i2 FROM item_claim('work', :'a', 10) \gset
SELECT item_done(ARRAY[:i1::bigint], :fi);
SELECT item_fail(:i2, :fi, 'once');
SELECT item_unclaim((:'ids'::bigint[])[3:3], :fi);
SELECT item_add('mortal', '7') > 0;
SELECT id AS i7, fence AS f7 FROM item_claim('mortal', :'a') \gset
SELECT item_fail(:i7, :f7, 'for good');
SELECT id AS i5, fence AS f5 FROM item_claim('lines', :'a') \gset
SELECT item_fail(:i5, :f5, 'once', '0');
SELECT pg_temp.locked();
COMMIT;
BEGIN;
SELECT id AS i5, fence AS f5 FROM item_claim('lines', :'a') \gset
SELECT item_done(ARRAY[:i5::bigint], :f5);
SELECT count(*) <= 1 FROM item_claim('shared', :'a');
SELECT pg_temp.locked();
COMMIT;
-- An item that has failed once is due, and the items of a session that ends are free.
BEGIN;
SELECT count(*) FROM item_claim('work', :'a', 10);
SELECT session_close(:'a');
SELECT pg_temp.locked();
COMMIT;
SELECT count(*) FROM items WHERE queue = 'work' AND state <> 'claimed';
BEGIN;
SELECT item_requeue(:i7);
SELECT attempt, payload FROM item_claim('mortal', :'b');
SELECT pg_temp.locked();
COMMIT;

-- Executions.
BEGIN;
SELECT fence AS e1 FROM execution_begin('once', :'b') \gset
SELECT execution_fail('once', :e1, 'no', true);
SELECT fence AS e2 FROM execution_begin('once', :'b') \gset
SELECT state FROM execution_begin('once', :'b');
SELECT execution_finish('once', :e2, '{"a": 1}');
SELECT state, result FROM execution_begin('once', :'b');
SELECT pg_temp.locked();
COMMIT;
SELECT state, attempts, result, error FROM executions;

-- The caller's own tables are locked as usual.
BEGIN;
SELECT count(*) FROM public.own WHERE id = 1;
SELECT lease_release('r', fence) FROM lease_acquire('r', :'b');
SELECT count(*) > 0 AS watched FROM pg_locks WHERE mode = 'SIReadLock' AND pid = pg_backend_pid() AND relation = ANY ('{public.own,public.own_pkey}'::regclass[]);
SELECT pg_temp.locked();
COMMIT;
DROP TABLE public.own;
RESET default_transaction_isolation;
DELETE FROM eskit_lease._executions;
SELECT queue_drop(queue, true) FROM queues ORDER BY queue;
SELECT count(*) > 0 AS closed FROM (SELECT session_close(session) FROM sessions) AS s;
SELECT group_drop('parts'), semaphore_drop('permits');
SELECT handed_over, more FROM session_sweep();
SELECT count(*) FROM sessions;
\i pg_test/sql/include/worker_on.psql
