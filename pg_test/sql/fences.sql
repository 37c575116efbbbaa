-- fence_check by one connection: what passes, what raises, and that fences only grow. Which session waits for which is
-- in specs/.
\i pg_test/sql/include/helpers.psql
\pset null -
SELECT session AS a FROM session_open('a', '1 hour') \gset
SELECT session AS b FROM session_open('b', '1 hour') \gset
SELECT fence AS f FROM lease_acquire('f', :'a') \gset

SELECT fence_check('f', :f);
BEGIN;
SELECT fence_check('f', :f);
SELECT fence_check('f', :f);
-- However many checks, the transaction holds one lock of each kind; blockers describes them.
SELECT doing, resource, consumer, granted, pid = pg_backend_pid() AS me, prepared, since = now() AS since FROM blockers ORDER BY 1;
SELECT pg_current_xact_id_if_assigned();
COMMIT;
SELECT count(*) FROM blockers;

-- Lost: released, superseded, never granted, of another name.
SELECT pg_temp.error_of(format('SELECT fence_check(%L, %s)', 'f', :f + 1));
SELECT pg_temp.error_of(format('SELECT fence_check(%L, %s)', 'f', :f - 1));
SELECT pg_temp.error_of(format('SELECT fence_check(%L, %s)', 'F', :f));
SELECT pg_temp.error_of(format('SELECT fence_check(%L, %s)', 'f', -1));
SELECT lease_release('f', :f);
SELECT pg_temp.error_of(format('SELECT fence_check(%L, %s)', 'f', :f));
SELECT fence AS g FROM lease_acquire('f', :'b') \gset
SELECT pg_temp.error_of(format('SELECT fence_check(%L, %s)', 'f', :f));
SELECT fence_check('f', :g);
SELECT session_close(:'b');
SELECT pg_temp.error_of(format('SELECT fence_check(%L, %s)', 'f', :g));
SELECT count(*) FROM blockers;

-- A transaction that checks and then releases does not wait for itself; after the release its check fails.
SELECT fence AS f FROM lease_acquire('f', :'a') \gset
BEGIN;
SELECT fence_check('f', :f);
SELECT lease_release('f', :f);
SELECT pg_temp.error_of(format('SELECT fence_check(%L, %s)', 'f', :f));
COMMIT;
SELECT fence AS f FROM lease_acquire('f', :'a') \gset
BEGIN;
SELECT fence_check('f', :f);
SELECT session_close(:'a');
SELECT pg_temp.error_of(format('SELECT fence_check(%L, %s)', 'f', :f));
ROLLBACK;
SELECT fence_check('f', :f);

-- The check counts no more once its savepoint is rolled back.
BEGIN;
SAVEPOINT s;
SELECT fence_check('f', :f);
SELECT count(*) FROM blockers;
ROLLBACK TO s;
SELECT count(*) FROM blockers;
SAVEPOINT s;
SELECT fence_check('f', :f);
RELEASE s;
SELECT count(*) FROM blockers;
ROLLBACK;
SELECT count(*) FROM blockers;

-- A grant of the same transaction is visible to the check under READ COMMITTED. At higher levels it is not, as the work
-- would rest on data from before the grant.
BEGIN;
SELECT fence AS g FROM lease_acquire('same', :'a') \gset
SELECT fence_check('same', :g);
ROLLBACK;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT fence AS g FROM lease_acquire('same', :'a') \gset
SELECT pg_temp.error_of(format('SELECT fence_check(%L, %s)', 'same', :g));
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT fence AS g FROM lease_acquire('same', :'a') \gset
SELECT pg_temp.error_of(format('SELECT fence_check(%L, %s)', 'same', :g));
COMMIT;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT fence_check('same', :g);
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT fence_check('same', :g);
COMMIT;
-- The check is in one statement with its grant: the statement's snapshot is older than the grant.
SELECT pg_temp.error_of(format('SELECT fence_check(%1$L, fence) FROM lease_acquire(%1$L, %2$L)', 'one', :'a'));

-- Read-only transactions may be fenced too.
BEGIN READ ONLY;
SELECT fence_check('f', :f);
COMMIT;

-- A check made through a cursor counts to the end of the transaction, even if the cursor fails later, in a savepoint.
BEGIN;
DECLARE checks CURSOR FOR SELECT CASE i WHEN 1 THEN fence_check('f', :f)::text ELSE (1 / (i - 2))::text END FROM generate_series(1, 2) AS i;
FETCH checks;
SAVEPOINT s;
FETCH checks;
ROLLBACK TO s;
SELECT count(*) AS guards FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory' AND objsubid BETWEEN 4501 AND 4503;
COMMIT;

-- As a user writes it: the check and the work are in one transaction, and commit together or not at all.
CREATE TEMP TABLE work (done int);
BEGIN;
SELECT fence_check('f', :f);
INSERT INTO work VALUES (1);
COMMIT;
SELECT lease_release('f', :f);
\set VERBOSITY sqlstate
BEGIN;
SELECT fence_check('f', :f);
INSERT INTO work VALUES (2);
COMMIT;
\set VERBOSITY default
SELECT done FROM work;

-- Fences grow with every owner and never fall, even after a rollback, or after an administrator sets the sequence back.
SELECT fence AS f1 FROM lease_acquire('n', :'a') \gset
SELECT lease_release('n', :f1);
BEGIN;
SELECT fence AS f2 FROM lease_acquire('n', :'a') \gset
ROLLBACK;
SELECT fence AS f3 FROM lease_acquire('n', :'a') \gset
SELECT :f1 < :f2 AND :f2 < :f3 AS growing;
SELECT count(*) AS fences, count(DISTINCT fence) AS different, min(fence) > :f3 AS greater
FROM lease_acquire_many(ARRAY(SELECT 'n' || i FROM generate_series(1, 3000) AS i), :'a');
SELECT last_value >= (SELECT max(fence) FROM leases) AS "at least", is_called FROM eskit_lease.fence_seq;
SELECT session_close(:'a');
CALL pg_temp.wait_for('NOT EXISTS (SELECT FROM eskit_lease.leases WHERE state <> ''free'')');

-- A second check in the same transaction relies on the first, even past the deadline: no session can have taken the
-- lease since.
SELECT session AS e FROM session_open('short', '2 s') \gset
SELECT fence AS fe FROM lease_acquire('late', :'e') \gset
BEGIN;
SELECT fence_check('late', :fe);
DO $$
BEGIN
    FOR i IN 1..1000 LOOP
        EXIT WHEN (SELECT state = 'expired' FROM eskit_lease.leases WHERE resource = 'late');
        PERFORM pg_sleep(0.02);
    END LOOP;
END
$$;
SELECT state FROM leases WHERE resource = 'late';
SELECT fence_check('late', :fe);
COMMIT;
SELECT split_part(pg_temp.error_of(format('SELECT eskit_lease.fence_check(%L, %s)', 'late', :fe)), ':', 1) AS after;

-- Even after the worker has freed the row, the late holder's answer is that it expired, not that it released.
CALL pg_temp.wait_for('state = ''free'' FROM eskit_lease.leases WHERE resource = ''late''');
SELECT held, reason FROM lease_renew('late', :fe);
SELECT pg_temp.error_of(format('SELECT eskit_lease.fence_check(%L, %s)', 'late', :fe));
SELECT lease_release('late', :fe);

-- Fences are not drawn faster than the clock runs, as an older history is recognised by the clock: a draw a second
-- ahead of it waits.
SELECT session AS a FROM session_open('fast', '60 s') \gset
CREATE FUNCTION pg_temp.reached() RETURNS bigint LANGUAGE sql AS
'SELECT floor((extract(epoch FROM clock_timestamp()) - 1735689600 + 60) * (1 << 22))::bigint';
SELECT setval('eskit_lease.fence_seq', pg_temp.reached() + (1 << 22)) > 0 AS set_ahead, clock_timestamp() AS began \gset
SELECT fence AS f1 FROM lease_acquire('fast', :'a') \gset
SELECT :f1 <= pg_temp.reached() AS behind, clock_timestamp() - :'began' > '0.5 s' AS waited;
-- No draw waits for a value that was set by hand.
SELECT setval('eskit_lease.fence_seq', pg_temp.reached() + 3600::bigint * (1 << 22)) > 0 AS "set by hand";
SELECT fence > :f1 AS greater FROM lease_acquire('by hand', :'a');

-- The bits below the step are random at each raise, and kept until the next raise.
SELECT f.last_value AS before, s.increment_by AS step FROM eskit_lease.fence_seq AS f, pg_sequences AS s WHERE s.sequencename = 'fence_seq' \gset
SELECT bool_and((f.fence - :before) % :step = 0) AS kept FROM generate_series(1, 20) AS i, lease_acquire('kept' || i, :'a') AS f;
CREATE TEMP TABLE raised (fence bigint, item bigint);
DO $$ BEGIN
    FOR i IN 1..20 LOOP
        PERFORM eskit_lease.session_sweep(1);
        INSERT INTO raised SELECT f.last_value & 63, n.last_value & 63 FROM eskit_lease.fence_seq AS f, eskit_lease._item_seq AS n;
    END LOOP;
END $$;
SELECT count(DISTINCT fence) > 1 AS fences, count(DISTINCT item) > 1 AS items FROM raised;
SELECT session_close(:'a');

-- A check alone, outside a transaction block, protects nothing: a WARNING, once in a connection.
\c -
\i pg_test/sql/include/helpers.psql
SELECT session AS a FROM session_open('alone', '1 hour') \gset
SELECT fence AS f FROM lease_acquire('alone', :'a') \gset
CREATE TABLE written (n int);
CREATE FUNCTION checks_and_writes(fence bigint, writes int) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
    PERFORM eskit_lease.fence_check('alone', fence);
    INSERT INTO written SELECT generate_series(1, writes);
END $$;
-- There is no warning where a transaction may write, even if it did not: in a block, a statement, a function, a string.
BEGIN;
SELECT fence_check('alone', :f);
COMMIT;
INSERT INTO written SELECT 1 FROM fence_check('alone', :f);
INSERT INTO written SELECT 1 FROM fence_check('alone', :f) WHERE false;
UPDATE written SET n = 2 FROM fence_check('alone', :f) WHERE n = 3;
WITH checked AS MATERIALIZED (SELECT 1 AS n FROM fence_check('alone', :f)), done AS (INSERT INTO written SELECT n FROM checked RETURNING n)
SELECT count(*) FROM done;
SELECT checks_and_writes(:f, 1);
SELECT checks_and_writes(:f, 0);
SELECT fence_check('alone', :f), checks_and_writes(:f, 1);
SELECT set_config('regress.f', :'f', false) IS NOT NULL AS known;
DO $$ BEGIN PERFORM checks_and_writes(current_setting('regress.f')::bigint, 1); END $$;
DO $$ BEGIN PERFORM eskit_lease.fence_check('alone', current_setting('regress.f')::bigint); END $$;
SELECT fence_check('alone', :f)\; INSERT INTO written VALUES (1);
SELECT fence_check('alone', :f)\; UPDATE written SET n = 2 WHERE n = 3;
PREPARE checked_write AS INSERT INTO written SELECT 1 FROM fence_check('alone', $1);
EXECUTE checked_write(:f);
-- There is no warning of a check that fails.
SELECT pg_temp.error_of(format('SELECT eskit_lease.fence_check(%L, %s)', 'alone', 1));
SELECT fence_check('alone', :f);
SELECT fence_check('alone', :f);
-- Reads are not protected either.
\c -
\i pg_test/sql/include/helpers.psql
\set VERBOSITY sqlstate
SELECT count(*), fence_check('alone', :f) FROM written;
SELECT fence_check('alone', :f);
\set VERBOSITY default
SELECT session_close(:'a');
DROP FUNCTION checks_and_writes;
DROP TABLE written;
