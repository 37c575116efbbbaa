-- A prepared transaction that is left open keeps every version of a row. A repeated call must cost about the same as
-- the first: at most twice the pages after 500 times. The test counts what is read, and measures no time.
\i pg_test/sql/include/worker_off.psql
CREATE TEMPORARY TABLE known AS
SELECT name, s.session FROM unnest(ARRAY['a', 'b']) AS name, session_open(name, '1 hour') AS s;
SELECT semaphore_create('often few', 3), semaphore_create('often many', 100), semaphore_create('often resized', 3);
SELECT group_create(g, 4), group_join(g, session)
FROM known, unnest(ARRAY['often member', 'often member beside', 'often session in a group']) AS g WHERE name = 'a';
CREATE FUNCTION pg_temp.who(name text) RETURNS uuid LANGUAGE sql AS $$ SELECT k.session FROM known AS k WHERE k.name = $1 $$;
CREATE FUNCTION pg_temp.take_and_release(resource text, name text, grace interval DEFAULT '0') RETURNS boolean LANGUAGE sql AS $$
    SELECT lease_release($1, a.fence, $3) FROM lease_acquire($1, pg_temp.who($2)) AS a
$$;
-- Does the n-th call.
CREATE FUNCTION pg_temp.act(what text, n integer) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    holder CONSTANT text = CASE n % 2 WHEN 0 THEN 'a' ELSE 'b' END;
    waiter CONSTANT text = CASE n % 2 WHEN 0 THEN 'b' ELSE 'a' END;
    had bigint;
    other uuid;
BEGIN
    CASE what
    WHEN 'lease' THEN RETURN pg_temp.take_and_release('often', 'a');
    WHEN 'grace' THEN RETURN pg_temp.take_and_release('often grace', 'a', '1 hour');
    WHEN 'few permits', 'many permits' THEN RETURN pg_temp.take_and_release('often ' || split_part(what, ' ', 1), 'a');
    WHEN 'lock' THEN
        RETURN (SELECT lease_release('often lock', a.fence) FROM lock_acquire('often lock', 'owner', '1 hour') AS a);
    WHEN 'hand-over' THEN
        SELECT fence INTO had FROM lease_acquire('often handed over', pg_temp.who(holder));
        -- A wait looks at what the session waits for, before it returns.
        RETURN (SELECT reason = 'queued' FROM lease_acquire('often handed over', pg_temp.who(waiter), true))
            AND (SELECT alive FROM session_wait(pg_temp.who(waiter), 0)) AND lease_release('often handed over', had);
    WHEN 'retry' THEN RETURN (SELECT execution_fail('often', b.fence, 'not yet', true) FROM execution_begin('often', pg_temp.who('a')) AS b);
    WHEN 'run-once key' THEN RETURN (SELECT execution_finish('often gone', b.fence) FROM execution_begin('often gone', pg_temp.who('a')) AS b WHERE b.first);
    WHEN 'in doubt' THEN
        SELECT session INTO other FROM session_open('b', '1 hour');
        RETURN (SELECT first FROM execution_begin('often in doubt', other, true)) AND session_close(other);
    WHEN 'resize' THEN PERFORM semaphore_resize('often resized', 3 + i % 2) FROM generate_series(1, 20) AS i; RETURN true;
    WHEN 'declaration' THEN PERFORM semaphore_create('often declared', 3), semaphore_drop('often declared'); RETURN true;
    WHEN 'declared name' THEN
        PERFORM lease_declare('often na', i % 2 = 0), lease_undeclare('often na') FROM generate_series(1, 20) AS i;
        RETURN true;
    WHEN 'name of a prefix' THEN
        PERFORM set_config('eskit_lease.declared_names', 'on', true);
        RETURN pg_temp.take_and_release('often named', 'a');
    WHEN 'permit of a resized' THEN RETURN pg_temp.take_and_release('often resized', 'a');
    WHEN 'member', 'member beside' THEN RETURN group_join('often ' || what, pg_temp.who('b')) >= 0 AND group_leave('often ' || what, pg_temp.who('b'));
    WHEN 'session in a group' THEN
        SELECT session INTO other FROM session_open('b', '1 hour');
        RETURN group_join('often ' || what, other) >= 0 AND session_close(other);
    WHEN 'assignment' THEN RETURN (SELECT count(*) = 4 FROM group_assignment('often member beside', pg_temp.who('a')));
    WHEN 'take-over' THEN RETURN (SELECT session IS NOT NULL FROM session_open('often', '1 hour', takeover => true));
    END CASE;
END
$$;
CREATE FUNCTION pg_temp.pages(what text, n integer) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    plan json;
BEGIN
    EXECUTE format('EXPLAIN (ANALYZE, BUFFERS, TIMING off, FORMAT json) SELECT pg_temp.act(%L, %s)', what, n) INTO plan;
    RETURN (plan #>> '{0,Plan,Shared Hit Blocks}')::bigint + (plan #>> '{0,Plan,Shared Read Blocks}')::bigint;
END
$$;
CREATE TEMPORARY TABLE taken (what text, n integer, pages bigint);
-- `meanwhile`: calls between the looks that are counted. `early`: how many calls come before the first look.
CREATE PROCEDURE pg_temp.again_and_again(what text, meanwhile text DEFAULT NULL, early integer DEFAULT 10) LANGUAGE plpgsql AS $$
BEGIN
    FOR n IN 0..early + 509 LOOP
        IF n BETWEEN early AND early + 9 OR n >= early + 500 THEN
            INSERT INTO taken VALUES (what, n, pg_temp.pages(what, n));
        ELSE
            ASSERT pg_temp.act(coalesce(meanwhile, what), n), what;
        END IF;
        COMMIT;
        -- As if its retention were over.
        DELETE FROM eskit_lease._executions WHERE key = 'often gone';
        COMMIT;
    END LOOP;
END
$$;
BEGIN;
SELECT pg_current_xact_id() IS NOT NULL AS writes;
PREPARE TRANSACTION 'forgotten';
CALL pg_temp.again_and_again('lease');
CALL pg_temp.again_and_again('grace');
CALL pg_temp.again_and_again('few permits');
CALL pg_temp.again_and_again('many permits');
CALL pg_temp.again_and_again('lock');
CALL pg_temp.again_and_again('hand-over');
CALL pg_temp.again_and_again('take-over');
CALL pg_temp.again_and_again('permit of a resized', 'resize');
CALL pg_temp.again_and_again('resize');
CALL pg_temp.again_and_again('declaration');
SELECT lease_declare('often n', prefix => true);
CALL pg_temp.again_and_again('name of a prefix', 'declared name');
SELECT lease_undeclare('often n');
CALL pg_temp.again_and_again('declared name');
CALL pg_temp.again_and_again('assignment', 'member beside', 110);
CALL pg_temp.again_and_again('member', early => 110);
CALL pg_temp.again_and_again('session in a group', early => 110);
CALL pg_temp.again_and_again('retry');
CALL pg_temp.again_and_again('run-once key');
CALL pg_temp.again_and_again('in doubt');
SELECT what, median.late <= 2 * median.early AS within_twice, CASE WHEN median.late > 2 * median.early THEN median.early || ' to ' || median.late END AS pages
FROM (SELECT what, percentile_disc(0.5) WITHIN GROUP (ORDER BY pages) FILTER (WHERE n < 200) AS early,
             percentile_disc(0.5) WITHIN GROUP (ORDER BY pages) FILTER (WHERE n > 200) AS late
      FROM taken GROUP BY what) AS median ORDER BY what COLLATE "C";
-- The rows found that way are the current ones.
SELECT resource, state, consumer FROM leases WHERE resource LIKE 'often%' ORDER BY 1;
SELECT count(*) AS often, count(session_close(session)) AS closed FROM sessions WHERE consumer = 'often' AND state = 'alive';
SELECT count(*) AS permits FROM lease_acquire('often few', pg_temp.who('a')) AS a WHERE granted;
SELECT reason FROM lease_acquire('often few', pg_temp.who('a'));
SELECT reason FROM lease_acquire('often grace', pg_temp.who('a'));
SELECT resource, released FROM lease_release_many(ARRAY['often', 'often few', 'often grace'], pg_temp.who('a')) ORDER BY 1;
SELECT reason FROM lease_acquire('often few', pg_temp.who('a'));
SELECT count(*) AS of_a FROM leases WHERE consumer = 'a';
SELECT key, state, attempts FROM executions WHERE key LIKE 'often%' ORDER BY 1;
SELECT execution_resolve('often in doubt', 'done', '1');
SELECT key, first, state, result FROM unnest(ARRAY['often', 'often gone', 'often in doubt']) AS key, execution_begin(key, pg_temp.who('a')) ORDER BY 1;
SELECT session_close(session) FROM known;
SELECT resource, state FROM leases WHERE resource LIKE 'often%' ORDER BY 1;
ROLLBACK PREPARED 'forgotten';
SELECT semaphore_drop('often few'), semaphore_drop('often many'), semaphore_drop('often resized');
SELECT group_drop(group_name) FROM groups WHERE group_name LIKE 'often%';
DELETE FROM eskit_lease._executions;
-- A look at a line reads the places of waiters that have expired, whose rows are still there, and reads them once.
SELECT session AS h FROM session_open('h', '1 hour') \gset
SELECT fence AS f FROM lease_acquire('dead line', :'h') \gset
SELECT count(*) FILTER (WHERE a.reason = 'queued') AS queued
FROM generate_series(1, 50) AS n, session_open('w' || n, '3 s') AS s, lease_acquire('dead line', s.session, true) AS a;
CALL pg_temp.wait_for('NOT EXISTS (SELECT FROM sessions WHERE consumer ~ ''^w'' AND state = ''alive'')');
BEGIN;
SELECT pg_stat_get_xact_tuples_returned('eskit_lease._waiters_pkey'::regclass) AS before \gset
SELECT lease_release('dead line', :f);
SELECT pg_stat_get_xact_tuples_returned('eskit_lease._waiters_pkey'::regclass) - :before BETWEEN 50 AND 75 AS read_once;
COMMIT;
SELECT session_close(:'h');
CALL pg_temp.wait_for('NOT more FROM eskit_lease.session_sweep()');
SELECT count(*) FROM sessions;
\i pg_test/sql/include/worker_on.psql
