-- Run-once keys. The worker is off, so that what is seen is the verbs' own doing.
\i pg_test/sql/include/worker_off.psql
\i pg_test/sql/include/refusals.psql
\pset null -
SELECT session AS a FROM session_open('a', '1 hour') \gset
SELECT session AS b FROM session_open('b', '1 hour') \gset
-- execution_begin without what differs from run to run.
CREATE FUNCTION pg_temp.start(key text, session uuid, retry_in_doubt boolean DEFAULT false)
RETURNS TABLE (first boolean, state text, fenced boolean, result jsonb, started boolean) LANGUAGE sql AS $$
    SELECT first, state, fence > 1::bigint << 40, result, started_at <= clock_timestamp()
    FROM eskit_lease.execution_begin(key, session, retry_in_doubt)
$$;
CREATE FUNCTION pg_temp.fence(name text) RETURNS bigint LANGUAGE sql AS $$
    SELECT fence FROM eskit_lease.executions WHERE key = name
$$;
CREATE VIEW pg_temp.seen AS
SELECT key, state, consumer, session IS NOT NULL AS session, attempts, started_at <= clock_timestamp() AS started,
       finished_at >= started_at AS finished, result, error, retry_in_doubt, resolved_by IS NOT NULL AS resolved_by, resolved_at >= finished_at AS resolved
FROM eskit_lease.executions ORDER BY key;

-- One session begins a key. Asked again, it gets its fence; other sessions do not.
SELECT * FROM pg_temp.start('k', :'a');
SELECT * FROM pg_temp.start('k', :'a');
SELECT fence = pg_temp.fence('k') AS same, first FROM execution_begin('k', :'a');
SELECT e.state, e.revision = h.revision AS "the session's" FROM session_heartbeat(:'a') AS h, execution_begin('k', :'a') AS e;
SELECT * FROM pg_temp.start('k', :'b');
SELECT * FROM pg_temp.seen;
SELECT role = current_user AS role, session = :'a' AS session FROM executions;
-- A key is finished once. A repeated finish is no error, and the first result stays.
SELECT pg_temp.fence('k') AS f \gset
SELECT execution_finish('k', :f, '{"sent": 1}');
SELECT execution_finish('k', :f, '{"sent": 2}') AS again, execution_finish('k', :f) AS "and again";
SELECT * FROM pg_temp.start('k', :'a');
SELECT * FROM pg_temp.start('k', :'b', true);
SELECT * FROM pg_temp.seen;
-- Without a result; with JSON's null; with numbers that are more exact than a program's.
SELECT execution_finish(v.key, b.fence, v.result)
FROM (VALUES ('n1', NULL), ('n2', 'null'::jsonb), ('n3', '[0.1000000000000000000000000000001, 12345678901234567890123, "\u00e9", {"b": 1, "a": []}]')) AS v (key, result),
     LATERAL execution_begin(v.key, :'a') AS b;
SELECT key, state, b.result, b.result IS NULL AS "is null" FROM unnest(ARRAY['n1', 'n2', 'n3']) AS key, execution_begin(key, :'b') AS b ORDER BY key;

-- An attempt fails for good, or may be retried as another attempt under a greater fence.
SELECT execution_fail(key, fence, 'no ' || key, key = 'again') FROM unnest(ARRAY['failed', 'again']) AS key, execution_begin(key, :'a');
SELECT execution_fail('failed', pg_temp.fence('failed'), 'other') AS known, execution_fail('again', pg_temp.fence('again'), 'other', true) AS known;
SELECT * FROM pg_temp.seen WHERE key IN ('failed', 'again');
SELECT * FROM pg_temp.start('failed', :'a');
SELECT * FROM pg_temp.start('failed', :'b', true);
SELECT pg_temp.fence('again') AS f \gset
SELECT * FROM pg_temp.start('again', :'b');
SELECT * FROM pg_temp.start('again', :'a');
SELECT pg_temp.fence('again') > :f AS greater;
SELECT * FROM pg_temp.seen WHERE key = 'again';
-- The former attempt's fence can no longer end the key.
SELECT pg_temp.refused(format('execution_finish(''again'', %s)', :f), format('execution_fail(''again'', %s, ''late'')', :f));
SELECT execution_finish('again', pg_temp.fence('again'), '2');
SELECT * FROM pg_temp.seen WHERE key = 'again';
-- An error is kept up to 8 KiB, cut at a character.
SELECT execution_fail(key, fence, error)
FROM (VALUES ('e1', repeat('x', 8192)), ('e2', repeat('x', 8193)), ('e3', repeat('x', 8191) || 'éé'), ('e4', '')) AS v (key, error), LATERAL execution_begin(key, :'a');
SELECT key, length(error), octet_length(error), right(error, 1) AS "last" FROM executions WHERE key LIKE 'e_' ORDER BY key;
-- A result has up to 1 MiB as text.
SELECT fence AS f FROM execution_begin('large', :'a') \gset
SELECT execution_finish('large', :f, to_jsonb(repeat('x', 1048574)));
SELECT length(result::text) FROM execution_begin('large', :'b');
SELECT fence AS f FROM execution_begin('too large', :'a') \gset
SELECT pg_temp.refused(
    format('execution_finish(''too large'', %s, to_jsonb(repeat(''x'', 1048575)))', :f),
    format('execution_finish(''too large'', %s, (SELECT jsonb_agg(i) FROM generate_series(1, 500000) AS i))', :f),
    'execution_resolve(''failed'', ''done'', to_jsonb(repeat(''x'', 1048575)))');
SELECT execution_finish('too large', :f, '"fits"');

-- A key is in doubt once its session is closed, expired, or gone. No session runs it again, and the former session's
-- finish is refused.
SELECT session AS c FROM session_open('c', '1 hour') \gset
SELECT session AS d FROM session_open('d', '1 s') \gset
SELECT count(*) FROM unnest(ARRAY['closed', 'closed 2', 'closed 3', 'closed 4']) AS key, execution_begin(key, :'c') WHERE first;
SELECT fence AS f FROM execution_begin('expired', :'d') \gset
SELECT session_close(:'c');
CALL pg_temp.wait_for('state = ''in_doubt'' FROM eskit_lease.executions WHERE key = ''expired''');
SELECT key, state, consumer, finished_at IS NULL AS unfinished FROM executions WHERE state = 'in_doubt' ORDER BY key;
SELECT * FROM pg_temp.start('closed', :'a');
SELECT * FROM pg_temp.start('expired', :'b', true);
SELECT pg_temp.refused(
    format('execution_finish(''expired'', %s)', :f), format('execution_fail(''expired'', %s, ''late'', true)', :f),
    format('execution_finish(''closed'', %s)', pg_temp.fence('closed')));
-- An administrator resolves it as done, with a result or without, as failed, or for a retry.
SELECT execution_resolve('closed', 'done', '"looked it up"'), execution_resolve('closed 2', 'failed'), execution_resolve('closed 3', 'retry'), execution_resolve('closed 4', 'done');
SELECT execution_resolve('closed', 'done', '"again"') AS "is done", execution_resolve('closed 3', 'failed') AS "is free";
SELECT * FROM pg_temp.seen WHERE key LIKE 'closed%';
SELECT resolved_by = current_user AS by FROM executions WHERE key = 'closed';
SELECT pg_temp.refused(format('execution_finish(%L, %s)', key, fence), format('execution_fail(%L, %s, ''late'')', key, fence))
FROM executions WHERE key LIKE 'closed%' ORDER BY key;
SELECT pg_temp.fence('closed 3') AS f \gset
SELECT key, b.* FROM unnest(ARRAY['closed', 'closed 2', 'closed 3', 'closed 4']) AS key, pg_temp.start(key, :'a') AS b ORDER BY key;
SELECT pg_temp.fence('closed 3') > :f AS greater;
SELECT pg_temp.refused(format('execution_finish(''closed 3'', %s)', :f));
SELECT * FROM pg_temp.seen WHERE key = 'closed 3';
-- A failed key may be resolved too, even one resolved as failed; a running one may not.
SELECT execution_resolve('failed', 'failed'), execution_resolve('failed', 'retry'), execution_resolve('closed 3', 'retry') AS "is running";
SELECT * FROM pg_temp.start('failed', :'b');
SELECT execution_fail('failed', pg_temp.fence('failed'), 'once more');
SELECT * FROM pg_temp.seen WHERE key = 'failed';
-- A key begun with retry_in_doubt: the next caller begins it again, and its own argument counts from then on.
SELECT session AS c FROM session_open('c', '1 hour') \gset
SELECT * FROM pg_temp.start('may be twice', :'c', true);
SELECT * FROM pg_temp.start('may be twice', :'a', true);
SELECT pg_temp.fence('may be twice') AS f \gset
SELECT session_close(:'c');
SELECT state, retry_in_doubt FROM executions WHERE key = 'may be twice';
SELECT * FROM pg_temp.start('may be twice', :'a');
SELECT * FROM pg_temp.start('may be twice', :'b', true);
SELECT attempts, retry_in_doubt, fence > :f AS greater, consumer FROM executions WHERE key = 'may be twice';
SELECT pg_temp.refused(format('execution_finish(''may be twice'', %s)', :f));

-- The work and the key commit together, or neither does.
CREATE TEMP TABLE work (what text);
BEGIN;
SELECT fence AS f FROM execution_begin('tx', :'a') \gset
INSERT INTO work VALUES ('tx');
SELECT execution_finish('tx', :f, '1');
SELECT * FROM pg_temp.start('tx', :'a');
ROLLBACK;
SELECT count(*) FROM work;
SELECT count(*) FROM executions WHERE key = 'tx';
BEGIN;
SELECT fence AS f FROM execution_begin('tx', :'a') \gset
INSERT INTO work VALUES ('tx');
SELECT execution_finish('tx', :f, '1');
COMMIT;
SELECT * FROM work;
SELECT * FROM pg_temp.start('tx', :'b');
-- A savepoint undoes both, too. A begin that was rolled back may be repeated, also by another session, under another
-- fence.
BEGIN;
SAVEPOINT s;
SELECT fence AS f FROM execution_begin('sp', :'a') \gset
ROLLBACK TO s;
SELECT pg_temp.refused(format('execution_finish(''sp'', %s)', :f));
SELECT first, fence > :f AS greater FROM execution_begin('sp', :'b');
SAVEPOINT s;
SELECT execution_finish('sp', pg_temp.fence('sp'), '1');
ROLLBACK TO s;
SELECT state FROM executions WHERE key = 'sp';
SELECT execution_fail('sp', pg_temp.fence('sp'), 'x', true);
SELECT * FROM pg_temp.start('sp', :'a');
COMMIT;
SELECT key, state, consumer, attempts, result FROM executions WHERE key = 'sp';
-- A session that the same transaction opened, and one that it closes.
BEGIN;
SELECT session AS c FROM session_open('c', '1 hour') \gset
SELECT first, state FROM execution_begin('new', :'c');
SELECT state FROM executions WHERE key = 'new';
SELECT session_close(:'c');
COMMIT;
SELECT state FROM executions WHERE key = 'new';
-- Calls answer by the latest state, at any isolation level.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) > 0 AS snapshot FROM work;
SELECT fence AS f FROM execution_begin('rr', :'a') \gset
SELECT execution_finish('rr', :f);
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT count(*) > 0 AS snapshot FROM work;
SELECT fence AS f FROM execution_begin('ser', :'a') \gset
SELECT execution_finish('ser', :f);
SELECT execution_resolve('new', 'retry');
COMMIT;
SELECT key, state FROM executions WHERE key IN ('rr', 'ser', 'new') ORDER BY key;

-- A draining session finishes what it has begun, and begins nothing new; it may still ask.
SELECT session AS c FROM session_open('c', '1 hour') \gset
SELECT fence AS f FROM execution_begin('drain', :'c') \gset
SELECT session_drain(:'c');
SELECT pg_temp.refused(format('execution_begin(''drain 2'', %L)', :'c'), format('execution_begin(''new'', %L)', :'c'));
SELECT * FROM pg_temp.start('drain', :'c');
SELECT * FROM pg_temp.start('k', :'c');
SELECT execution_finish('drain', :f);
SELECT session_close(:'c');
SELECT pg_temp.refused(
    format('execution_begin(''k'', %L)', :'c'), format('execution_begin(''k'', %L)', :'d'), 'execution_begin(''k'', ''00000000-0000-0000-0000-000000000000'')');
-- execution_begin is a heartbeat.
SELECT expires_at AS e FROM sessions WHERE session = :'a' \gset
SELECT pg_sleep(0.1) IS NOT NULL AS later, first FROM execution_begin('k', :'a');
SELECT first FROM execution_begin('k', :'a');
SELECT expires_at > :'e' AS extended FROM sessions WHERE session = :'a';

-- NULLs; invalid keys, fences and outcomes; read-only transactions.
\pset format unaligned
\pset tuples_only on
SELECT fence AS f FROM execution_begin('open', :'a') \gset
SELECT pg_temp.refused(
    format('execution_begin(NULL, %L)', :'a'), 'execution_begin(''open'', NULL)', format('execution_begin(''open'', %L, NULL)', :'a'),
    format('execution_finish(NULL, %s)', :f), 'execution_finish(''open'', NULL)', format('execution_fail(NULL, %s, ''x'')', :f),
    'execution_fail(''open'', NULL, ''x'')', format('execution_fail(''open'', %s, NULL)', :f), format('execution_fail(''open'', %s, ''x'', NULL)', :f),
    'execution_resolve(NULL, ''done'')', 'execution_resolve(''open'', NULL)');
SELECT pg_temp.refused(
    format('execution_begin('''', %L)', :'a'), format('execution_begin(repeat(''x'', 256), %L)', :'a'), format('execution_finish('''', %s)', :f),
    format('execution_fail(repeat(''é'', 128), %s, ''x'')', :f), 'execution_resolve('''', ''done'')');
SELECT pg_temp.refused(
    format('execution_finish(''open'', %s)', :f + 1), format('execution_finish(''open'', %s)', :f - 1), 'execution_finish(''open'', 0)', 'execution_finish(''open'', -1)',
    format('execution_finish(''no such key'', %s)', :f), format('execution_fail(''no such key'', %s, ''x'')', :f),
    format('execution_fail(''k'', %s, ''x'')', pg_temp.fence('k')), format('execution_finish(''e1'', %s)', pg_temp.fence('e1')));
SELECT pg_temp.refused(
    'execution_resolve(''failed'', '''')', 'execution_resolve(''failed'', ''running'')', 'execution_resolve(''failed'', ''in_doubt'')', 'execution_resolve(''failed'', ''DONE'')',
    'execution_resolve(''failed'', ''failed'', ''1'')', 'execution_resolve(''failed'', ''retry'', ''1'')', 'execution_resolve(''no such key'', ''done'')');
BEGIN READ ONLY;
SELECT pg_temp.refused(
    format('execution_begin(''k'', %L)', :'a'), format('execution_finish(''open'', %s)', :f), format('execution_fail(''open'', %s, ''x'')', :f),
    'execution_resolve(''failed'', ''done'')');
COMMIT;
SELECT execution_finish('open', :f);

-- Another role's session, and its key while it runs and afterwards. Only administrators resolve keys, even those of
-- one's own role.
CREATE ROLE regress_runner;
CREATE ROLE regress_mate IN ROLE regress_runner;
CREATE ROLE regress_stranger;
SELECT grant_consumer('regress_runner'), grant_consumer('regress_stranger'), grant_monitor('regress_stranger');
SET ROLE regress_runner;
SELECT session AS r FROM eskit_lease.session_open('r', '1 hour') \gset
SELECT fence AS f FROM eskit_lease.execution_begin('theirs', :'r') \gset
SELECT fence AS g FROM eskit_lease.execution_begin('theirs 2', :'r') \gset
SELECT pg_temp.error_of('SELECT eskit_lease.execution_resolve(''failed'', ''done'')');
SET ROLE regress_stranger;
SELECT pg_temp.error_of(format(statement, :'r', :f))
FROM unnest(ARRAY['SELECT eskit_lease.execution_begin(''x'', %1$L)', 'SELECT eskit_lease.execution_finish(''theirs'', %2$s)',
                  'SELECT eskit_lease.execution_fail(''theirs'', %2$s, ''x'')', 'SELECT eskit_lease.execution_resolve(''theirs'', ''done'')']) AS statement;
SELECT session AS s FROM eskit_lease.session_open('s', '1 hour') \gset
SELECT first, state, fence FROM eskit_lease.execution_begin('theirs', :'s');
SELECT key, state, consumer, role, session FROM eskit_lease.executions WHERE key = 'theirs';
SET ROLE regress_mate;
SELECT eskit_lease.execution_finish('theirs', :f, '"by a mate"'), eskit_lease.execution_fail('theirs 2', :g, 'x');
SELECT eskit_lease.execution_finish('theirs', :f), eskit_lease.execution_fail('theirs 2', :g, 'x');
SET ROLE regress_stranger;
SELECT pg_temp.error_of(format(statement, :f, :g))
FROM unnest(ARRAY['SELECT eskit_lease.execution_finish(''theirs'', %1$s)', 'SELECT eskit_lease.execution_fail(''theirs 2'', %2$s, ''x'')']) AS statement;
SELECT state, result FROM eskit_lease.execution_begin('theirs', :'s');
RESET ROLE;
SELECT session_close(:'r'), session_close(:'s');
DROP OWNED BY regress_runner, regress_stranger;
DROP ROLE regress_runner, regress_mate, regress_stranger;
-- A dropped role's key stays.
SELECT execution_finish('theirs', :f) AS known;

-- A session that was closed in the same transaction cannot end its attempt.
SELECT session AS e FROM session_open('e', '1 hour') \gset
SELECT first, fence AS f FROM execution_begin('ended here', :'e') \gset
BEGIN;
SELECT session_close(:'e');
SELECT pg_temp.refused(format('execution_finish(%L, %s)', 'ended here', :f), format('execution_fail(%L, %s, %L)', 'ended here', :f, 'error'));
COMMIT;
SELECT * FROM pg_temp.seen WHERE key = 'ended here';

SELECT count(session_close(session)) > 0 AS closed FROM sessions;
DELETE FROM eskit_lease._executions;
\i pg_test/sql/include/worker_on.psql
