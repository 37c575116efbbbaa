-- A permit of a large semaphore is acquired, released and handed over without a look at all holders. The test counts
-- what is read, and measures no time.
\i pg_test/sql/include/worker_off.psql
CREATE FUNCTION pg_temp.rows_read() RETURNS bigint LANGUAGE sql AS $$
    SELECT pg_stat_get_xact_tuples_fetched('eskit_lease._leases'::regclass) + pg_stat_get_xact_tuples_fetched('eskit_lease._leases_seat'::regclass)
$$;
SELECT semaphore_create('many', 1000);
CREATE TEMPORARY TABLE holders AS
SELECT n, s.session, a.fence, a.slot FROM generate_series(1, 1000) AS n, session_open('h' || n, '1 hour') AS s, lease_acquire('many', s.session) AS a;
SELECT count(DISTINCT slot) AS slots, count(fence) AS granted FROM holders;
SELECT session AS me FROM session_open('me', '1 hour') \gset
SELECT session AS waiter FROM session_open('waiter', '1 hour') \gset
-- To find out that all permits are held, a call counts them.
BEGIN;
SELECT pg_temp.rows_read() AS before \gset
SELECT reason FROM lease_acquire('many', :'me');
SELECT pg_temp.rows_read() - :before >= 1000 AS all;
COMMIT;
-- Once one call has counted, every caller knows the result.
BEGIN;
SELECT pg_temp.rows_read() AS before \gset
SELECT reason FROM lease_acquire('many', :'me');
SELECT reason FROM lease_acquire('many', :'waiter');
SELECT reason FROM lease_acquire('many', :'waiter', true);
SELECT pg_temp.rows_read() - :before < 50 AS few;
COMMIT;
SELECT lease_cancel('many', :'waiter');
BEGIN;
SELECT pg_temp.rows_read() AS before \gset
SELECT reason FROM lock_acquire('many', 'cron', '1 min');
SELECT reason FROM lock_acquire('many', 'cron', '1 min', gen_random_uuid());
SELECT pg_temp.rows_read() - :before < 50 AS few;
COMMIT;
SELECT lease_release('many', fence) FROM holders WHERE n = 500;
BEGIN;
SELECT pg_temp.rows_read() AS before \gset
SELECT fence AS f, reason FROM lock_acquire('many', 'cron', '1 min', '00000000-0000-0000-0000-000000000001') \gset
SELECT :'reason' AS reason, pg_temp.rows_read() - :before < 50 AS few;
SELECT reason, fence = :f AS same FROM lock_acquire('many', 'cron', '1 min', '00000000-0000-0000-0000-000000000001');
SELECT reason FROM lock_acquire('many', 'other', '1 min', '00000000-0000-0000-0000-000000000001');
ROLLBACK;

BEGIN;
SELECT pg_temp.rows_read() AS before \gset
SELECT fence AS f, reason FROM lease_acquire('many', :'me') \gset
SELECT reason FROM lease_acquire('many', :'me');
SELECT :'reason' AS reason, pg_temp.rows_read() - :before < 50 AS few;
SELECT slot = (SELECT slot FROM holders WHERE n = 500) AS same FROM leases WHERE resource = 'many' AND fence = :f;
COMMIT;
SELECT reason FROM lease_acquire('many', :'me');
SELECT reason FROM lease_acquire('many', :'waiter');
SELECT reason FROM lease_acquire('many', :'waiter', true);
BEGIN;
SELECT pg_temp.rows_read() AS before \gset
SELECT lease_release('many', :f);
SELECT pg_temp.rows_read() - :before < 50 AS few;
COMMIT;
SELECT consumer FROM leases WHERE resource = 'many' AND consumer NOT LIKE 'h%';

-- A session whose permit is in grace gets no second one.
SELECT fence AS f FROM lease_acquire('many', :'waiter') \gset
SELECT lease_release('many', :f, '1 hour');
SELECT lease_release('many', fence) FROM holders WHERE n = 501;
SELECT fence = :f AS same, reason FROM lease_acquire('many', :'waiter');
SELECT count(*) FROM leases WHERE resource = 'many' AND consumer = 'waiter';
-- While a slot beyond the permits is held, each call counts all holders.
SELECT semaphore_resize('many', 999);
SELECT lease_release('many', fence) FROM holders WHERE slot = (SELECT slot FROM holders WHERE slot < 999 AND n NOT IN (500, 501) ORDER BY n LIMIT 1);
SELECT held <= 999 AS fits FROM semaphores;
SELECT reason FROM lease_acquire('many', :'me');
SELECT held <= 999 AS fits FROM semaphores;
SELECT session AS other FROM session_open('other', '1 hour') \gset
SELECT reason FROM lease_acquire('many', :'other');
-- A count finds a dead holder's permit.
SELECT session_close(session) FROM holders WHERE n = 700;
SELECT reason FROM lease_acquire('many', :'other');

SELECT count(*) > 0 AS closed FROM (SELECT session_close(session) FROM sessions) AS s;
SELECT semaphore_drop('many');

-- After a count that found all held, a call still finds the permit of a session that was closed, or has expired.
SELECT semaphore_create('full', 100);
CREATE TEMPORARY TABLE filled AS SELECT n, s.session FROM generate_series(1, 100) AS n, session_open('f' || n, '1 hour') AS s;
SELECT count(*) FILTER (WHERE a.granted) FROM filled, lease_acquire('full', session) AS a;
SELECT session AS late FROM session_open('late', '1 hour') \gset
SELECT reason FROM lease_acquire('full', :'late');
SELECT session_close(session) FROM filled WHERE n = 7;
SELECT reason, fence AS f FROM lease_acquire('full', :'late') \gset
SELECT :'reason' AS reason, lease_release('full', :f);
SELECT session AS short FROM session_open('short', '1 s') \gset
SELECT reason FROM lease_acquire('full', :'short');
SELECT reason FROM lease_acquire('full', :'late');
DO $$ BEGIN WHILE (SELECT count(*) > 0 FROM sessions WHERE consumer = 'short' AND state = 'alive') LOOP PERFORM pg_sleep(0.05); END LOOP; END $$;
SELECT reason FROM lease_acquire('full', :'late');
-- A permit whose row was deleted is found.
SELECT count(*) FROM session_sweep();
SELECT session AS later FROM session_open('later', '1 hour') \gset
SELECT reason FROM lease_acquire('full', :'later');
SELECT count(*) > 0 AS closed FROM (SELECT session_close(session) FROM sessions) AS s;
SELECT count(*) FROM session_sweep();
SELECT semaphore_drop('full');
SELECT semaphore_create('full', 100);
SELECT session AS late FROM session_open('late', '1 hour') \gset
SELECT reason FROM lease_acquire('full', :'late');
SELECT session_close(:'late');
SELECT semaphore_drop('full');
-- The count of a transaction that is rolled back is not remembered.
SELECT semaphore_create('undone', 70);
SELECT count(*) FILTER (WHERE a.granted) FROM generate_series(1, 69) AS n, session_open('u' || n, '1 hour') AS s, lease_acquire('undone', s.session) AS a;
SELECT session AS late FROM session_open('late', '1 hour') \gset
SELECT session AS later FROM session_open('later', '1 hour') \gset
BEGIN;
SELECT reason FROM lease_acquire('undone', :'late');
SELECT reason FROM lease_acquire('undone', :'later');
ROLLBACK;
SELECT reason FROM lease_acquire('undone', :'later');
SELECT count(*) > 0 AS closed FROM (SELECT session_close(session) FROM sessions) AS s;
SELECT semaphore_drop('undone');
SELECT count(*) FROM sessions;
\i pg_test/sql/include/worker_on.psql
