-- The line: first come, first served. The worker is off, so that what is seen here is the verbs' own doing.
\i pg_test/sql/include/worker_off.psql
\pset null -
SELECT session AS a FROM session_open('a', '1 hour') \gset
SELECT session AS b FROM session_open('b', '1 hour') \gset
SELECT session AS c FROM session_open('c', '1 hour') \gset
SELECT session AS d FROM session_open('d', '1 hour') \gset

-- Sessions are in line once each, in the order of their coming.
SELECT fence AS f FROM lease_acquire('q', :'a', true) \gset
SELECT * FROM pg_temp.ask('q', :'b', true);
SELECT * FROM pg_temp.ask('q', :'c', true);
SELECT * FROM pg_temp.ask('q', :'b', true);
SELECT * FROM pg_temp.ask('q', :'a', true);
SELECT (pg_temp.ask('q', :'d')).reason;
-- A session that has a place is told so, even if it asks for none.
SELECT * FROM pg_temp.ask('q', :'b');
SELECT resource, granted, holder, reason FROM lease_acquire_many('{q,other}', :'c');
SELECT lease_release('other', fence) FROM leases WHERE resource = 'other';
BEGIN READ ONLY;
SELECT reason FROM lease_acquire('q', :'b');
COMMIT;
-- A draining session is not told so: its place is worth nothing now.
SELECT session AS e FROM session_open('e', '1 hour') \gset
SELECT (pg_temp.ask('q', :'e', true)).reason;
SELECT session_drain(:'e');
SELECT (pg_temp.ask('q', :'e')).reason;
SELECT session_close(:'e');
SELECT resource, position, consumer, state, queued_at < clock_timestamp() AS queued, waiting_for < '1 minute' AS fresh, holder FROM waiters ORDER BY position;
SELECT consumer, leases, waiting_for FROM sessions ORDER BY 1;
SELECT waiters FROM leases WHERE resource = 'q';

-- The release hands over in its own transaction, and the waiter's revision grows.
SELECT revision AS b1 FROM session_heartbeat(:'b') \gset
SELECT revision AS c1 FROM session_heartbeat(:'c') \gset
BEGIN;
SELECT lease_release('q', :f);
SELECT consumer, fence > :f AS greater, waiters FROM leases WHERE resource = 'q';
SELECT revision = :b1 AS "not yet" FROM session_heartbeat(:'b');
COMMIT;
SELECT b.revision > :b1 AS told, c.revision = :c1 AS "not told" FROM session_heartbeat(:'b') AS b, session_heartbeat(:'c') AS c;
SELECT * FROM pg_temp.ask('q', :'b');
SELECT resource, position, consumer FROM waiters;
SELECT held, reason FROM lease_renew('q', :f);

-- A close hands over too; a close that is rolled back does not.
BEGIN;
SELECT session_close(:'b');
SELECT consumer FROM leases WHERE resource = 'q';
ROLLBACK;
SELECT consumer FROM leases WHERE resource = 'q';
SELECT position, consumer FROM waiters;
SELECT session_close(:'b');
SELECT consumer FROM leases WHERE resource = 'q';
SELECT position, consumer FROM waiters;

-- A release by force and a bulk release hand over too.
SELECT (pg_temp.ask('q', :'d', true)).reason;
SELECT lease_force_release('q', fence, 'test') FROM lease_acquire('q', :'c');
SELECT consumer FROM leases WHERE resource = 'q';
SELECT session AS b FROM session_open('b', '1 hour') \gset
SELECT (pg_temp.ask('q', :'b', true)).reason;
SELECT * FROM lease_release_many('{q}', :'d');
SELECT consumer FROM leases WHERE resource = 'q';

-- Waiters give up their places. Each had only one, so then no session waits.
SELECT (pg_temp.ask('q', :'a', true)).reason, (pg_temp.ask('q', :'c', true)).reason, (pg_temp.ask('q', :'d', true)).reason;
SELECT lease_cancel('q', :'c');
SELECT lease_cancel('q', :'c') AS again, lease_cancel('q', :'b') AS holder, lease_cancel('nothing', :'c') AS nothing,
       lease_cancel('q', '00000000-0000-4000-8000-000000000000') AS unknown;
BEGIN;
SELECT lease_cancel('q', :'a');
ROLLBACK;
SELECT position, consumer FROM waiters ORDER BY 1;

-- A place that is rolled back never existed.
BEGIN;
SAVEPOINT s;
SELECT (pg_temp.ask('q', :'c', true)).reason;
ROLLBACK TO s;
SELECT position, consumer FROM waiters ORDER BY 1;
COMMIT;

-- Draining sessions are skipped and keep their places; closed ones lose them.
SELECT session_drain(:'a');
SELECT position, consumer, state FROM waiters ORDER BY 1;
SELECT lease_release('q', fence) FROM lease_acquire('q', :'b');
SELECT consumer FROM leases WHERE resource = 'q';
SELECT position, consumer, state FROM waiters ORDER BY 1;
SELECT session_close(:'a');
SELECT count(*) FROM waiters;
-- All waiters are draining: the lease is free, and the next caller gets it.
SELECT session AS a FROM session_open('a', '1 hour') \gset
SELECT (pg_temp.ask('q', :'a', true)).reason;
SELECT session_drain(:'a');
SELECT lease_release('q', fence) FROM lease_acquire('q', :'d');
SELECT state, waiters FROM leases WHERE resource = 'q';
SELECT * FROM pg_temp.ask('q', :'a');
SELECT * FROM pg_temp.ask('q', :'b');
SELECT session_close(:'a');

-- A free resource goes to no session but its living waiter. Here the holder has expired, and no process has noticed
-- yet.
SELECT session AS short FROM session_open('short', '2 s') \gset
SELECT granted, fence AS f FROM lease_acquire('p', :'short') \gset
SELECT (pg_temp.ask('p', :'b', true)).reason, (pg_temp.ask('p', :'c', true)).reason;
CALL pg_temp.wait_for('state = ''expired'' FROM eskit_lease.leases WHERE resource = ''p''');
SELECT * FROM pg_temp.ask('p', :'d');
SELECT resource, granted, holder, reason FROM lease_acquire_many('{p}', :'d');
SELECT granted, holder, reason FROM lock_acquire('p', 'host', '30 s');
SELECT * FROM pg_temp.ask('p', :'d', true);
SELECT * FROM pg_temp.ask('p', :'c');
SELECT resource, position, consumer, state FROM waiters ORDER BY position;
SELECT granted, holder, reason, fence > :f AS greater FROM lease_acquire('p', :'b');
SELECT resource, position, consumer, holder FROM waiters ORDER BY position;
-- At its end session_wait judges the session's places. It grants to no other session, as its transaction may be long.
SELECT session AS short FROM session_open('short', '2 s') \gset
SELECT granted FROM lease_acquire('w', :'short');
SELECT (pg_temp.ask('w', :'b', true)).reason, (pg_temp.ask('w', :'c', true)).reason;
CALL pg_temp.wait_for('state = ''expired'' FROM eskit_lease.leases WHERE resource = ''w''');
SELECT alive FROM session_heartbeat(:'c') AS h, LATERAL (SELECT w.reason FROM session_wait(:'c', h.revision, '0') AS w) AS w;
SELECT consumer, state, waiters FROM leases WHERE resource = 'w';
SELECT alive FROM session_heartbeat(:'b') AS h, LATERAL (SELECT w.reason FROM session_wait(:'b', h.revision, '0') AS w) AS w;
SELECT consumer, state, waiters FROM leases WHERE resource = 'w';
-- session_wait does so for any number of places. (Written into the table: so many calls may outlast the holder.)
SELECT session AS short FROM session_open('short', '5 s') \gset
SELECT session AS many FROM session_open('many', '1 hour') \gset
SELECT array_agg('many-' || i) AS names FROM generate_series(1, 1200) AS i \gset
SELECT count(*) FILTER (WHERE granted) FROM lease_acquire_many(:'names', :'short');
INSERT INTO eskit_lease._waiters (resource, session, queued_at) SELECT name, :'many', now() FROM unnest(:'names'::text[]) AS name;
CALL pg_temp.wait_for('state = ''expired'' FROM eskit_lease.leases WHERE resource = ''many-1200''');
SELECT alive FROM session_heartbeat(:'many') AS h, LATERAL (SELECT w.reason FROM session_wait(:'many', h.revision, '0') AS w) AS w;
SELECT count(*) FROM leases WHERE consumer = 'many';
SELECT session_close(:'many');
CALL pg_temp.wait_for('NOT more FROM eskit_lease.session_sweep()');
-- A waiter that has expired is skipped.
SELECT session AS short FROM session_open('short', '2 s') \gset
SELECT fence AS f FROM lease_acquire('x', :'b') \gset
SELECT (pg_temp.ask('x', :'short', true)).reason, (pg_temp.ask('x', :'c', true)).reason;
CALL pg_temp.wait_for('state = ''expired'' FROM eskit_lease.waiters WHERE resource = ''x'' AND position = 1');
SELECT lease_release('x', :f);
SELECT consumer, waiters FROM leases WHERE resource = 'x';
SELECT position, consumer, state FROM waiters WHERE resource = 'x';
SELECT count(*) > 0 AS swept FROM session_sweep();
SELECT count(*) FROM waiters WHERE resource = 'x';
-- A sweep hands over as the worker would; then nothing remains to do.
SELECT session AS short FROM session_open('short', '2 s') \gset
SELECT count(*) FILTER (WHERE granted) FROM lease_acquire_many('{y1,y2,y3}', :'short');
SELECT (pg_temp.ask('y1', :'b', true)).reason, (pg_temp.ask('y2', :'c', true)).reason;
CALL pg_temp.wait_for('state = ''expired'' FROM eskit_lease.leases WHERE resource = ''y1''');
SELECT ended, handed_over, more FROM session_sweep();
SELECT resource, state, consumer FROM leases WHERE resource LIKE 'y_' ORDER BY 1;
SELECT ended, handed_over, more FROM session_sweep();
SELECT count(*) AS "without a holder" FROM leases WHERE state = 'expired';

-- The largest number of names that one session may wait for.
SELECT count(*) FILTER (WHERE granted) FROM lease_acquire_many(ARRAY(SELECT 'z' || i FROM generate_series(1, 10001) AS i), :'b');
SELECT (pg_temp.ask('z1', :'c', true)).reason;
-- (Written into the table, as ten thousand calls would take long.)
INSERT INTO eskit_lease._waiters (resource, session, queued_at)
SELECT 'z' || i, :'c', now() FROM generate_series(2, 10000 - (SELECT waiting_for - 1 FROM sessions WHERE session = :'c')) AS i;
SELECT waiting_for FROM sessions WHERE session = :'c';
SELECT pg_temp.error_of(format('SELECT lease_acquire(%L, %L, true)', 'z10001', :'c'));
SELECT (pg_temp.ask('z1', :'c', true)).reason AS again;
SELECT lease_cancel('z1', :'c');
SELECT (pg_temp.ask('z10001', :'c', true)).reason;
SELECT session_close(:'c');
SELECT count(*) FROM waiters WHERE consumer = 'c' AND state = 'alive';
SELECT session_close(:'b'), session_close(:'d');
CALL pg_temp.wait_for('NOT more FROM eskit_lease.session_sweep(100000)');
SELECT count(*) FROM leases WHERE state <> 'free';
SELECT count(*) FROM waiters;
SELECT count(*) FROM sessions;
\i pg_test/sql/include/worker_on.psql
