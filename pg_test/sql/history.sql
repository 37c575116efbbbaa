-- The history of leases, and the views for operators. The worker is off at first, so that only the verbs act.
\i pg_test/sql/include/worker_off.psql
\pset null -
DELETE FROM eskit_lease._history;
CREATE FUNCTION pg_temp.told(OUT event text, OUT resource text, OUT slot int, OUT consumer text, OUT next_consumer text, OUT rises boolean, OUT why text)
RETURNS SETOF record LANGUAGE sql AS $$
    SELECT event, resource, slot, consumer, next_consumer, next_fence > fence, why FROM eskit_lease.history ORDER BY at, resource, slot
$$;
CREATE PROCEDURE pg_temp.expired(consumer text) LANGUAGE plpgsql AS $$
BEGIN
    CALL pg_temp.wait_for(format('bool_and(state = ''expired'') FROM eskit_lease.sessions AS s WHERE s.consumer = %L', consumer));
END
$$;
SELECT session AS a FROM session_open('a', '1 hour') \gset
SELECT session AS b FROM session_open('b', '1 hour') \gset
SELECT session AS c FROM session_open('c', '1 hour') \gset

-- Ordinary events leave no row: a grant, a request, a hand-over, a release, a close, a grace.
SELECT fence AS f FROM lease_acquire('r', :'a') \gset
SELECT (pg_temp.ask('r', :'b', true)).reason;
SELECT lease_release('r', :f);
SELECT (pg_temp.ask('r', :'b')).reason;
SELECT session_close(:'b');
SELECT (pg_temp.ask('r', :'c')).reason;
SELECT lease_release('r', fence, grace => '1 s') FROM leases WHERE resource = 'r';
CALL pg_temp.wait_for('state = ''expired'' FROM eskit_lease.leases WHERE resource = ''r''');
SELECT (pg_temp.ask('r', :'a')).reason;
SELECT * FROM pg_temp.told();

-- An expiry, found by a caller and by the sweep.
SELECT session AS s FROM session_open('short', '1 s') \gset
SELECT fence AS f FROM lease_acquire('e1', :'s') \gset
SELECT (pg_temp.ask('e2', :'s')).reason;
SELECT granted FROM lock_acquire('e3', 'short', '1 s');
CALL pg_temp.expired('short');
BEGIN;
SELECT (pg_temp.ask('e1', :'a')).reason;
ROLLBACK;
SELECT * FROM pg_temp.told();
SELECT (pg_temp.ask('e1', :'a')).reason;
CALL pg_temp.wait_for('NOT more FROM eskit_lease.session_sweep()');
SELECT * FROM pg_temp.told() ORDER BY resource;
-- How to look up why a fence is refused.
SELECT h.event, h.consumer, h.next_consumer, h.next_fence = l.fence AS "is the present one"
FROM history AS h JOIN leases AS l ON l.resource = h.resource WHERE h.resource = 'e1' AND h.fence = :f;
DELETE FROM eskit_lease._history;

-- Taken over.
SELECT session AS a2 FROM session_open('a', '1 hour', takeover => true) \gset
SELECT * FROM pg_temp.told() ORDER BY resource;
-- Released by force: with a waiter, and without.
DELETE FROM eskit_lease._history;
SELECT (pg_temp.ask('e1', :'c', true)).reason;
SELECT max(fence) FILTER (WHERE resource = 'e1') AS fe, max(fence) FILTER (WHERE resource = 'r') AS fr FROM leases \gset
SELECT lease_force_release(resource, fence, 'does not answer') FROM leases WHERE resource IN ('e1', 'r') ORDER BY resource;
SELECT lease_force_release('e1', 1, 'of nobody');
SELECT event, resource, consumer, next_consumer, forced_by = current_user AS "by me", why FROM history ORDER BY resource;
-- The former holders are told, until another grant or as long as the history knows.
SELECT r.* FROM (VALUES ('e1', :fe), ('r', :fr)) AS n (resource, fence), lease_renew(n.resource, n.fence) AS r;
SELECT pg_temp.error_of(format('SELECT fence_check(%L, %s)', resource, fence)) FROM (VALUES ('e1', :fe), ('r', :fr)) AS n (resource, fence);
-- The former holder of a permit is told, too, if the permit was given on in the same step.
SELECT semaphore_create('p', 2);
SELECT session AS b FROM session_open('b', '1 hour') \gset
SELECT fence AS pa FROM lease_acquire('p', :'a2') \gset
SELECT fence AS pc FROM lease_acquire('p', :'c') \gset
SELECT (pg_temp.ask('p', :'b', true)).reason;
SELECT lease_force_release('p', :pa, 'does not answer');
SELECT lease_release('p', :pc);
SELECT (pg_temp.ask('p', :'c')).reason;
SELECT held, reason, holder FROM (VALUES (:pa), (:pc)) AS n (fence), lease_renew('p', n.fence) AS r;
SELECT pg_temp.error_of(format('SELECT fence_check(%L, %s)', 'p', fence)) FROM (VALUES (:pa), (:pc)) AS n (fence);
SELECT lease_release(resource, fence) FROM leases WHERE resource = 'p' AND consumer = 'b';
SELECT (pg_temp.ask('p', :'a2')).reason;
SELECT held, reason, holder FROM lease_renew('p', :pa);
SELECT * FROM lease_release_many('{p}', :'a2');
SELECT * FROM lease_release_many('{p}', :'c');
SELECT semaphore_drop('p'), session_close(:'b');
BEGIN;
SELECT lease_release('e1', fence) FROM leases WHERE resource = 'e1';
SELECT reason FROM lease_acquire('e1', :'a2');
SELECT held, reason, holder FROM lease_renew('e1', :fe);
ROLLBACK;
BEGIN;
SELECT lease_force_release('e1', fence, 'in this transaction'), lease_renew('e1', fence) FROM leases WHERE resource = 'e1';
ROLLBACK;
DELETE FROM eskit_lease._history;
SELECT held, reason, holder FROM (VALUES ('e1', :fe), ('r', :fr)) AS n (resource, fence), lease_renew(n.resource, n.fence);

-- With history_grants on, ordinary events leave rows, too.
ALTER SYSTEM SET eskit_lease.history_grants = on;
SELECT pg_reload_conf();
\set name eskit_lease.history_grants
\set value on
\set ECHO none
\i pg_test/sql/include/setting.psql
\set ECHO all
SELECT fence AS f FROM lease_acquire('o', :'a2') \gset
SELECT (pg_temp.ask('o', :'a2')).reason;
SELECT (pg_temp.ask('o', :'c')).reason;
SELECT (pg_temp.ask('o', :'c', true)).reason;
SELECT lease_release('o', :f);
SELECT count(*) FROM lease_acquire_many('{o1,o2}', :'c');
SELECT count(*) FROM lease_release_many('{o1,o2}', :'c');
SELECT session_close(:'c');
SELECT event, resource, consumer, next_consumer, next_fence > fence AS rises FROM history WHERE resource LIKE 'o%' ORDER BY resource, fence, event;
SELECT count(*) AS "fences that were granted twice" FROM (SELECT fence FROM history WHERE event = 'granted' GROUP BY 1 HAVING count(*) > 1) AS f;
DELETE FROM eskit_lease._history;
ALTER SYSTEM RESET eskit_lease.history_grants;
-- With history_retention = 0 nothing is recorded.
ALTER SYSTEM SET eskit_lease.history_retention = 0;
SELECT pg_reload_conf();
\set name eskit_lease.history_retention
\set value 0
\set ECHO none
\i pg_test/sql/include/setting.psql
\set ECHO all
SELECT (pg_temp.ask('off', :'a2')).reason;
SELECT lease_force_release('off', fence, 'unseen') FROM leases WHERE resource = 'off';
SELECT * FROM pg_temp.told();
ALTER SYSTEM RESET eskit_lease.history_retention;
SELECT pg_reload_conf();
\set name eskit_lease.history_retention
\set value 1d
\set ECHO none
\i pg_test/sql/include/setting.psql
\set ECHO all

-- An administrator's trigger sees each row.
CREATE FUNCTION pg_temp.seen() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN NEW.why = NEW.why || ', as the trigger has seen'; RETURN NEW; END$$;
CREATE TRIGGER seen BEFORE INSERT ON eskit_lease._history FOR EACH ROW EXECUTE FUNCTION pg_temp.seen();
SELECT (pg_temp.ask('t', :'a2')).reason;
SELECT lease_force_release('t', fence, 'test') FROM leases WHERE resource = 't';
SELECT event, resource, why FROM history;
DROP TRIGGER seen ON eskit_lease._history;
DELETE FROM eskit_lease._history;

-- The views flapping (the same lease lost time and again) and top (the names with most events).
SELECT session AS l FROM session_open('loser', '1 hour') \gset
SELECT count(lease_force_release(a.resource, a.fence, 'again'))
FROM generate_series(1, 3) AS i, lease_acquire_many(ARRAY['flaps'] || CASE WHEN i = 1 THEN '{rests}' ELSE '{}' END::text[], :'l') AS a;
SELECT resource, changes, expired, taken_over, revoked, forced, granted, slots, consumers, last_at > now() - interval '1 minute' AS late
FROM flapping ORDER BY changes DESC;
UPDATE eskit_lease._history SET at = at - interval '1 hour';
SELECT count(*) FROM flapping;
UPDATE eskit_lease._history SET at = at + interval '1 hour';
SELECT semaphore_create('many', 2), group_create('shared', 3);
SELECT session AS m FROM session_open('member', '1 hour') \gset
SELECT group_join('shared', :'m') > 0 AS joined;
SELECT count(cursor_report_head('shared', i, 10)) FROM generate_series(0, 2) AS i;
SELECT (pg_temp.ask('many', :'l')).reason;
SELECT fence AS f FROM lease_acquire('led', :'l') \gset
SELECT (pg_temp.ask('led', :'m', true)).reason;
BEGIN;
SELECT fence_check('led', :f);
SELECT resource, kind, held, slots, consumer, held_for < '1 minute' AS fresh, trust_ms > 3500000 AS trusted, waiters, waiting_for < '1 minute' AS waiting,
       open_for < '1 minute' AS open, losses, lag
FROM top WHERE held > 0 OR losses > 0;
COMMIT;
-- A member that is restarted once counts as one loss for each of its partitions.
SELECT session AS m FROM session_open('member', '1 hour', takeover => true) \gset
SELECT count(*) FROM group_assignment('shared', :'m');
SELECT changes, taken_over, slots, (SELECT losses FROM top WHERE resource = 'shared') FROM flapping WHERE resource = 'shared';
-- `top` has no more rows than a screen.
SELECT count(*) FROM lease_acquire_many(ARRAY(SELECT 'bulk ' || i FROM generate_series(1, 100) AS i), :'l') WHERE granted;
SELECT count(*) FROM top;

-- Monitors may read the views, and write nothing.
CREATE ROLE regress_watch;
SELECT grant_monitor('regress_watch');
SET ROLE regress_watch;
SELECT count(*) > 0 AS history FROM history;
SELECT count(*) > 0 AS flapping FROM flapping;
SELECT count(*) > 0 AS top FROM top;
SELECT pg_temp.error_of('SELECT * FROM eskit_lease._history');
SELECT pg_temp.error_of('DELETE FROM history');
RESET ROLE;
DROP OWNED BY regress_watch;
CREATE ROLE regress_consumer;
SELECT grant_consumer('regress_consumer');
SET ROLE regress_consumer;
SELECT pg_temp.error_of('SELECT * FROM history'), pg_temp.error_of('SELECT * FROM flapping'), pg_temp.error_of('SELECT * FROM top');
RESET ROLE;
DROP OWNED BY regress_consumer;
DROP ROLE regress_watch, regress_consumer;

-- With the worker: partitions not released in time, and leases that expire while others wait.
SELECT session_close(session) FROM sessions WHERE state <> 'expired';
DELETE FROM eskit_lease._history;
\i pg_test/sql/include/worker_on.psql
SELECT session AS a FROM session_open('a', '1 hour') \gset
SELECT session AS b FROM session_open('b', '1 hour') \gset
SELECT group_create('late', 2, rebalance_timeout => '1 s');
SELECT group_join('late', :'a') > 0 AS joined;
SELECT group_join('late', :'b') > 0 AS joined;
CALL pg_temp.wait_for('count(*) = 1 FROM eskit_lease.group_partitions WHERE group_name = ''late'' AND owner = ''b''');
SELECT granted FROM lease_acquire('w', (SELECT session FROM session_open('short', '3 s')));
SELECT reason FROM lease_acquire('w', :'a', true);
CALL pg_temp.wait_for('state = ''held'' AND consumer = ''a'' FROM eskit_lease.leases WHERE resource = ''w''');
SELECT event, resource, slot, consumer, next_consumer, next_fence > fence AS rises, forced_by, why FROM history ORDER BY resource;

SELECT session_close(session) FROM sessions WHERE state <> 'expired';
CALL pg_temp.wait_for('count(*) = 0 FROM eskit_lease.sessions');
SELECT group_drop(group_name) FROM groups;
SELECT semaphore_drop(name) FROM semaphores;
DELETE FROM eskit_lease._history;
