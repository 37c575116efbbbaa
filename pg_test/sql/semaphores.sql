-- Semaphores: N permits, each a lease. The worker is off, so that what is seen is the verbs' own doing.
\i pg_test/sql/include/worker_off.psql
\i pg_test/sql/include/refusals.psql
\pset null -
-- The holders of permits in the order of their grants, without the slots.
CREATE FUNCTION pg_temp.holders(name text) RETURNS text LANGUAGE sql AS $$
    SELECT string_agg(consumer, ',' ORDER BY fence) FROM eskit_lease.leases WHERE resource = name AND state = 'held'
$$;
-- lease_acquire, with only whether the slot is valid.
CREATE FUNCTION pg_temp.permit(name text, session uuid, queue boolean DEFAULT false)
RETURNS TABLE (granted boolean, fenced boolean, "slot there is" boolean, holder text, trusted boolean, reason text) LANGUAGE sql AS $$
    SELECT granted, fence > 1::bigint << 40, slot < (SELECT permits FROM eskit_lease.semaphores AS s WHERE s.name = permit.name), holder,
           trust_ms BETWEEN 1 AND 3600000, reason
    FROM eskit_lease.lease_acquire(name, session, queue)
$$;
SELECT session AS a FROM session_open('a', '1 hour') \gset
SELECT session AS b FROM session_open('b', '1 hour') \gset
SELECT session AS c FROM session_open('c', '1 hour') \gset
SELECT session AS d FROM session_open('d', '1 hour') \gset
SELECT session AS e FROM session_open('e', '1 hour') \gset

SELECT semaphore_create('s', 3);
SELECT name, permits, held, waiters, owner = current_user AS mine FROM semaphores;
SELECT count(*) FROM leases WHERE resource = 's';
-- A session gets any free permit, and one only.
SELECT * FROM pg_temp.permit('s', :'a');
SELECT * FROM pg_temp.permit('s', :'b');
SELECT * FROM pg_temp.permit('s', :'c');
SELECT count(*), count(DISTINCT slot) AS slots, min(slot), max(slot), count(DISTINCT fence) AS fences FROM leases WHERE resource = 's' AND state = 'held';
SELECT fence AS fa, slot AS sa FROM lease_acquire('s', :'a') \gset
SELECT fence = :fa AS same, slot = :sa AS same, holder, reason FROM lease_acquire('s', :'a');
SELECT resource, granted, fence = :fa AS same, slot = :sa AS same, reason FROM lease_acquire_many('{s}', :'a');
SELECT pg_temp.holders('s');
-- All permits are held: the answer names no holder.
SELECT * FROM pg_temp.permit('s', :'d');
SELECT resource, granted, fence, slot, holder, trust_ms, reason FROM lease_acquire_many('{s}', :'d');
SELECT * FROM lock_acquire('s', 'host', '30 s');
SELECT permits, held, waiters FROM semaphores;
SELECT count(*) FROM sessions WHERE private;

-- A permit is a lease, in whatever slot.
SELECT fence AS f2, consumer AS holder2 FROM leases WHERE resource = 's' AND slot = 2 \gset
SELECT fence_check('s', :f2);
BEGIN;
SELECT fence_check('s', :f2);
SELECT doing, resource, consumer = :'holder2' AS holder FROM blockers ORDER BY 1;
COMMIT;
SELECT held, trust_ms > 0 AS trusted, reason FROM lease_renew('s', :f2);
SELECT lease_release('s', :f2 + 1000000) AS newer, lease_release('s', :f2 - 1000000) AS older;
BEGIN;
SELECT lease_release('s', :f2);
SELECT held FROM semaphores;
SELECT held, reason FROM lease_renew('s', :f2);
SELECT granted, slot, reason FROM lease_acquire('s', :'d');
ROLLBACK;
SELECT held, reason FROM lease_renew('s', :f2);
SELECT lease_force_release('s', :f2, 'test');
SELECT lease_force_release('s', :f2, 'test') AS again;
SELECT held FROM lease_renew('s', :f2);
SELECT granted, slot, reason, fence > :f2 AS greater FROM lease_acquire('s', :'d');
SELECT held, reason FROM lease_renew('s', :f2);
SELECT pg_temp.error_of(format('SELECT fence_check(''s'', %s)', :f2));
SELECT held, reason FROM lease_renew('s', :f2 + 1000000);
SELECT held, reason FROM lease_renew('none', :f2);
-- The holders are a, b and c again.
SELECT * FROM lease_release_many('{s,none}', :'d');
SELECT * FROM lease_release_many('{s}', :'d');
SELECT granted FROM unnest(ARRAY[:'a', :'b', :'c']::uuid[]) AS session, lease_acquire('s', session);
SELECT held FROM semaphores;

-- First come, first served. The session that releases or closes hands over.
SELECT * FROM pg_temp.permit('s', :'d', true);
SELECT * FROM pg_temp.permit('s', :'e', true);
SELECT * FROM pg_temp.permit('s', :'a', true);
SELECT resource, position, consumer, state, holder FROM waiters ORDER BY position;
SELECT permits, held, waiters FROM semaphores;
SELECT revision AS d1 FROM session_heartbeat(:'d') \gset
SELECT revision AS e1 FROM session_heartbeat(:'e') \gset
SELECT lease_release('s', fence) FROM lease_acquire('s', :'b');
SELECT d.revision > :d1 AS told, e.revision = :e1 AS "not told" FROM session_heartbeat(:'d') AS d, session_heartbeat(:'e') AS e;
SELECT * FROM pg_temp.permit('s', :'d');
SELECT position, consumer FROM waiters;
SELECT * FROM pg_temp.permit('s', :'b') AS "others are in line";
SELECT granted, holder, reason FROM lock_acquire('s', 'host', '30 s');
SELECT (pg_temp.permit('s', :'b', true)).reason;
BEGIN;
SELECT session_close(:'c');
SELECT pg_temp.holders('s');
ROLLBACK;
SELECT session_close(:'c');
SELECT pg_temp.holders('s');
SELECT position, consumer FROM waiters;
SELECT lease_cancel('s', :'b');
-- A draining waiter is skipped; releases in bulk and by force hand over, too.
SELECT session AS c FROM session_open('c', '1 hour') \gset
SELECT session AS f FROM session_open('f', '1 hour') \gset
SELECT (pg_temp.permit('s', :'c', true)).reason, (pg_temp.permit('s', :'b', true)).reason, (pg_temp.permit('s', :'f', true)).reason;
SELECT session_drain(:'c');
SELECT * FROM lease_release_many('{s}', :'a');
SELECT pg_temp.holders('s');
SELECT lease_force_release('s', fence, 'test') FROM lease_acquire('s', :'d');
SELECT pg_temp.holders('s');
SELECT position, consumer, state FROM waiters;
SELECT session_close(:'c');
SELECT count(*) FROM waiters;
-- One call releases permits of several semaphores, and each goes to another session. (A session has one permit of
-- each.)
SELECT semaphore_create('t', 1);
SELECT (pg_temp.permit('t', :'e')).reason, (pg_temp.permit('t', :'a', true)).reason, (pg_temp.permit('s', :'a', true)).reason,
       (pg_temp.permit('t', :'d', true)).reason;
SELECT * FROM lease_release_many('{s,t}', :'e');
SELECT name, held, waiters, pg_temp.holders(name) FROM semaphores ORDER BY 1;
SELECT session_close(:'a');
SELECT name, held, waiters, pg_temp.holders(name) FROM semaphores ORDER BY 1;

-- A place that is rolled back never existed; a permit whose grant is rolled back is free.
SELECT session AS a FROM session_open('a', '1 hour') \gset
BEGIN;
SAVEPOINT s;
SELECT (pg_temp.permit('s', :'a')).reason;
SELECT held FROM semaphores WHERE name = 's';
ROLLBACK TO s;
SELECT held FROM semaphores WHERE name = 's';
SELECT (pg_temp.permit('s', :'e')).reason;
COMMIT;
SELECT pg_temp.holders('s');
BEGIN;
SELECT (pg_temp.permit('s', :'a', true)).reason;
ROLLBACK;
SELECT count(*) FROM waiters;

-- After the semaphore grows, a waiter is served by the worker or by its own next call.
SELECT (pg_temp.permit('s', :'a', true)).reason, (pg_temp.permit('s', :'d', true)).reason;
SELECT semaphore_resize('s', 4);
SELECT permits, held, waiters FROM semaphores WHERE name = 's';
SELECT (pg_temp.permit('s', :'d')).reason;
SELECT * FROM pg_temp.permit('s', :'a');
SELECT semaphore_resize('s', 5);
SELECT * FROM pg_temp.permit('s', :'d');
SELECT permits, held, waiters, pg_temp.holders('s') FROM semaphores WHERE name = 's';
BEGIN;
SELECT semaphore_resize('s', 100);
ROLLBACK;
SELECT semaphore_resize('s', 5) AS same;
SELECT permits, held FROM semaphores WHERE name = 's';

-- After it shrinks, no permit is taken away. As permits come back, only as many as now allowed are granted.
SELECT semaphore_resize('s', 2);
SELECT permits, held, pg_temp.holders('s') FROM semaphores WHERE name = 's';
SELECT bool_and(r.held) AS "all held" FROM leases AS l, lease_renew('s', l.fence) AS r WHERE l.resource = 's' AND l.state = 'held';
SELECT session AS g FROM session_open('g', '1 hour') \gset
SELECT (pg_temp.permit('s', :'g', true)).reason;
SELECT consumer, lease_release('s', fence) AS released, (SELECT held FROM semaphores WHERE name = 's') AS held_before
FROM (SELECT consumer, fence FROM leases WHERE resource = 's' AND state = 'held' ORDER BY fence LIMIT 3) AS l;
SELECT permits, held, waiters, pg_temp.holders('s') FROM semaphores WHERE name = 's';
SELECT lease_release('s', fence) FROM leases WHERE resource = 's' AND state = 'held' ORDER BY fence LIMIT 1;
SELECT permits, held, waiters, pg_temp.holders('s') FROM semaphores WHERE name = 's';
SELECT (pg_temp.permit('s', :'b')).reason, (pg_temp.permit('s', :'e')).reason;
-- The semaphore shrinks and grows again while a permit beyond the number is held.
SELECT semaphore_resize('s', 1);
SELECT (pg_temp.permit('s', :'b', true)).reason;
SELECT lease_release('s', fence) FROM lease_acquire('s', :'g');
SELECT permits, held, waiters FROM semaphores WHERE name = 's';
SELECT semaphore_resize('s', 2);
SELECT (pg_temp.permit('s', :'b')).reason;
SELECT permits, held, waiters FROM semaphores WHERE name = 's';
SELECT session_close(session) FROM unnest(ARRAY[:'a', :'b', :'d', :'e', :'f', :'g']::uuid[]) AS session;
SELECT name, permits, held, waiters FROM semaphores ORDER BY 1;

-- lock_acquire gives permits, too, without a session of the caller's own, to any number of owners. A repeated request
-- finds its permit again.
SELECT semaphore_create('l', 3);
\set r1 '11111111-1111-4111-8111-111111111111'
SELECT granted, fence AS f, slot, holder, reason FROM lock_acquire('l', 'host-1', '1 minute', :'r1') \gset l_
SELECT :'l_granted' AS granted, :'l_holder' AS holder, :'l_reason' AS reason;
SELECT granted, holder, reason FROM lock_acquire('l', 'host-1', '1 minute');
SELECT granted, fence = :l_f AS same, slot = :l_slot AS same, reason FROM lock_acquire('l', 'host-1', '1 minute', :'r1');
SELECT held, pg_temp.holders('l') FROM semaphores WHERE name = 'l';
SELECT count(*) FROM sessions WHERE private;
SELECT held, reason FROM lease_renew('l', :l_f);
SELECT lease_release('l', :l_f);
SELECT count(*) = (SELECT held FROM semaphores WHERE name = 'l') AS "a session for each" FROM sessions WHERE private;
SELECT lease_release('l', fence) FROM leases WHERE resource = 'l' AND state = 'held';
SELECT count(*) FROM sessions WHERE private;

-- A late holder learns what became of its permit.
SELECT semaphore_create('fate', 2);
SELECT session AS a FROM session_open('a', '1 hour') \gset
SELECT session AS b FROM session_open('b', '1 hour') \gset
SELECT session AS s FROM session_open('short', '1 s') \gset
SELECT fence AS fs FROM lease_acquire('fate', :'s') \gset
CALL pg_temp.wait_for('state = ''expired'' FROM eskit_lease.leases WHERE resource = ''fate''');
SELECT held FROM semaphores WHERE name = 'fate';
SELECT held, reason FROM lease_renew('fate', :fs);
SELECT lease_release('fate', :fs);
SELECT pg_temp.error_of(format('SELECT fence_check(''fate'', %s)', :fs));
-- A dead holder's permit is free.
SELECT granted FROM unnest(ARRAY[:'a', :'b']::uuid[]) AS session, lease_acquire('fate', session);
SELECT held, pg_temp.holders('fate') FROM semaphores WHERE name = 'fate';
SELECT held, reason FROM lease_renew('fate', :fs);
SELECT pg_temp.error_of(format('SELECT fence_check(''fate'', %s)', :fs));
SELECT fence AS fa FROM lease_acquire('fate', :'a') \gset
SELECT lease_release('fate', :fa);
SELECT held, reason FROM lease_renew('fate', :fa);
-- The worker frees permits of the dead and serves waiters, also when the semaphore grows.
\i pg_test/sql/include/worker_on.psql
\i pg_test/sql/include/refusals.psql
\pset null -
SELECT session AS s FROM session_open('short', '1 s') \gset
SELECT granted FROM lease_acquire('fate', :'s');
SELECT reason FROM lease_acquire('fate', :'a', true);
CALL pg_temp.wait_for('consumer = ''a'' FROM eskit_lease.leases WHERE resource = ''fate'' AND state = ''held'' AND consumer <> ''b''');
SELECT reason FROM lease_acquire('fate', :'a');
SELECT session AS c FROM session_open('c', '1 hour') \gset
SELECT session AS d FROM session_open('d', '1 hour') \gset
SELECT reason FROM unnest(ARRAY[:'c', :'d']::uuid[]) AS session, lease_acquire('fate', session, true);
SELECT semaphore_resize('fate', 4);
CALL pg_temp.wait_for('held = 4 FROM eskit_lease.semaphores WHERE name = ''fate''');
SELECT reason FROM unnest(ARRAY[:'c', :'d']::uuid[]) AS session, lease_acquire('fate', session);
SELECT lease_release('fate', fence) FROM lease_acquire('fate', :'a');
SELECT session AS s FROM session_open('short', '1 s') \gset
SELECT fence AS fs FROM lease_acquire('fate', :'s') \gset
CALL pg_temp.wait_for(format('state = ''free'' FROM eskit_lease.leases WHERE resource = ''fate'' AND fence = %s', :fs));
SELECT held, reason FROM lease_renew('fate', :fs);
SELECT session_close(:'c'), session_close(:'d');

-- Refusals, which change nothing.
\i pg_test/sql/include/worker_off.psql
\i pg_test/sql/include/refusals.psql
\pset null -
\pset format unaligned
\pset tuples_only on
SELECT pg_temp.refused(
    'semaphore_create(NULL, 1)', 'semaphore_create(''n'', NULL)', 'semaphore_create('''', 1)', 'semaphore_create(repeat(''x'', 256), 1)',
    'semaphore_create(''n'', 0)', 'semaphore_create(''n'', -1)', 'semaphore_create(''n'', 32769)',
    'semaphore_resize(NULL, 1)', 'semaphore_resize(''fate'', NULL)', 'semaphore_resize(''fate'', 0)', 'semaphore_resize(''fate'', 32769)',
    'semaphore_resize(''none'', 1)', 'semaphore_drop(NULL)', 'semaphore_drop(''none'')');
SELECT group_create('g', 1);
SELECT reason FROM lease_acquire('plain', :'a');
SELECT session AS s FROM session_open('short', '1 s') \gset
SELECT reason FROM lease_acquire('waited', :'s');
SELECT reason FROM lease_acquire('waited', :'a', true);
CALL pg_temp.wait_for('state = ''expired'' FROM eskit_lease.leases WHERE resource = ''waited''');
SELECT pg_temp.refused(
    'semaphore_create(''fate'', 1)', 'semaphore_create(''g'', 1)', 'group_create(''fate'', 1)', 'semaphore_create(''plain'', 1)',
    'semaphore_create(''waited'', 1)', 'semaphore_resize(''g'', 1)', 'semaphore_drop(''g'')', 'semaphore_resize(''plain'', 1)',
    'semaphore_drop(''plain'')');
-- A semaphore that is held or waited for cannot be dropped.
SELECT pg_temp.refused('semaphore_drop(''fate'')');
SELECT session AS s FROM session_open('short', '1 s') \gset
SELECT reason FROM lease_acquire('t', :'s');
SELECT reason FROM lease_acquire('t', :'a', true);
CALL pg_temp.wait_for('state = ''expired'' FROM eskit_lease.leases WHERE resource = ''t''');
SELECT pg_temp.refused('semaphore_drop(''t'')');
SELECT lease_cancel('t', :'a');
SELECT semaphore_drop('t');
SELECT count(*) FROM leases WHERE resource = 't';
BEGIN READ ONLY;
SELECT reason FROM lease_acquire('fate', :'b');
SELECT held FROM semaphores WHERE name = 'fate';
SELECT pg_temp.refused(
    'semaphore_create(''n'', 1)', 'semaphore_resize(''fate'', 1)', 'semaphore_drop(''fate'')', format('lease_acquire(''l'', %L)', :'b'));
COMMIT;
-- Another role's semaphore.
CREATE ROLE regress_semaphore_role;
SELECT grant_consumer('regress_semaphore_role');
SELECT fence AS fb FROM lease_acquire('fate', :'b') \gset
SET ROLE regress_semaphore_role;
SELECT pg_temp.error_of(format(statement, :fb))
FROM unnest(ARRAY[
    'SELECT eskit_lease.semaphore_resize(''fate'', 1)', 'SELECT eskit_lease.semaphore_drop(''fate'')',
    'SELECT eskit_lease.lease_renew(''fate'', %s)', 'SELECT eskit_lease.lease_release(''fate'', %s)',
    'SELECT eskit_lease.lease_release(''fate'', %s, ''1 s'')', 'SELECT eskit_lease.fence_check(''fate'', %s)']) AS statement;
-- Any consumer may ask for a permit, and make a semaphore of its own.
SELECT reason FROM eskit_lease.lock_acquire('fate', 'theirs', '1 minute');
SELECT eskit_lease.semaphore_create('theirs', 1);
SELECT eskit_lease.semaphore_resize('theirs', 2);
SELECT eskit_lease.semaphore_drop('theirs');
RESET ROLE;
SELECT lease_release(resource, fence) FROM leases WHERE state = 'held' AND consumer = 'theirs';
SELECT session_close(:'a'), session_close(:'b');
DROP OWNED BY regress_semaphore_role;
DROP ROLE regress_semaphore_role;
SELECT semaphore_drop(name) FROM semaphores;
SELECT group_drop('g');
SELECT count(*) FROM eskit_lease._declarations;
\i pg_test/sql/include/worker_on.psql
