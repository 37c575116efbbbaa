-- Sessions are opened, kept alive, drained, detached, closed and expired; alone and with savepoints.
\i pg_test/sql/include/helpers.psql
\pset null -

SELECT session AS a, trust_ms > 9000 AND trust_ms <= 10000 AS trusted, expires_at - clock_timestamp() < '10 s' AS soon,
       abs(revision - extract(epoch FROM clock_timestamp()) * 1000000) < 60000000 AS about_now
FROM session_open('worker-1') \gset
SELECT :'trusted' AS trusted, :'soon' AS soon, :'about_now' AS "revision is about now";
SELECT :'a' ~ '^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$' AS "version 4";
SELECT consumer, role, state, ttl_ms, trust_ms > 0 AS trusted, expires_at > now() AS future, revision > 0 AS revised, attached_pid,
       private, opened_at <= clock_timestamp() AS opened, leases, waiting_for, session = :'a' AS mine
FROM sessions;

-- The same name twice: two sessions.
SELECT session AS b, trust_ms > 59000 AND trust_ms <= 60000 AS a_minute FROM session_open('worker-1', '1 minute') \gset
SELECT :'a_minute' AS a_minute, :'a' <> :'b' AS different;
SELECT session AS c FROM session_open('worker-2', ttl => '00:00:06', attach => true, attach_grace => '1 s') \gset
SET eskit_lease.default_ttl = '90s';
SELECT session AS d FROM session_open(repeat('n', 255)) \gset
RESET eskit_lease.default_ttl;
SELECT left(consumer, 10) AS consumer, ttl_ms, attached_pid = pg_backend_pid() AS attached FROM sessions ORDER BY 1, 2;

-- A heartbeat starts the TTL again and keeps the revision. It writes nothing, so it takes no transaction id.
SELECT alive, trust_ms BETWEEN 59000 AND 60000 AS trusted, expires_at > now() + '50 s' AS later, reason FROM session_heartbeat(:'b');
SELECT h.revision = s.revision AS same FROM sessions AS s, session_heartbeat(:'b') AS h WHERE s.session = :'b';
BEGIN;
SELECT alive FROM session_heartbeat(:'b');
SELECT alive, reason FROM session_wait(:'b', 0);
SELECT pg_current_xact_id_if_assigned();
COMMIT;
SELECT alive, trust_ms, expires_at, revision, reason FROM session_heartbeat('00000000-0000-4000-8000-000000000000');
-- The answer is a value like any other; a cursor can read rows backward again.
SELECT (session_heartbeat(:'b')).reason, (h).alive FROM (SELECT session_heartbeat(:'b') AS h) AS a;
DO $$
DECLARE
    state eskit_lease.session_state := eskit_lease.session_heartbeat('00000000-0000-4000-8000-000000000000');
BEGIN
    ASSERT NOT state.alive AND state.reason = 'unknown_session' AND state.trust_ms IS NULL;
END
$$;
BEGIN;
DECLARE back SCROLL CURSOR FOR SELECT resource, released FROM lease_release_many('{x,y}', :'b');
FETCH ALL FROM back;
FETCH BACKWARD ALL FROM back;
COMMIT;

-- session_wait answers at once when there is news, otherwise at the timeout, or in time for the next heartbeat.
SELECT revision AS r FROM session_heartbeat(:'b') \gset
SELECT alive, trust_ms > 0 AS trusted, revision = :r AS same, reason FROM session_wait(:'b', :r - 1, '5 s');
SELECT alive, trust_ms > 0 AS trusted, revision = :r AS same, reason FROM session_wait(:'b', :r, '0');
SELECT alive, trust_ms > 0 AS trusted, revision = :r AS same, reason FROM session_wait(:'b', :r, '20 ms');
SELECT h.trust_ms - w.trust_ms < 150 AS "counts from the call", w.reason FROM session_heartbeat(:'b') AS h, session_wait(:'b', h.revision, '300 ms') AS w;
SELECT w.alive, w.trust_ms > 0 AS trusted, w.reason FROM session_heartbeat(:'c') AS h, session_wait(:'c', h.revision) AS w;
SELECT alive, trust_ms, expires_at, revision, reason FROM session_wait('00000000-0000-4000-8000-000000000000', 0);

-- A change of what the session holds or waits for: the revision grows when it is committed.
SELECT granted FROM lease_acquire('s1', :'b');
SELECT revision > :r AS grown FROM session_heartbeat(:'b');
SELECT revision AS r FROM session_heartbeat(:'b') \gset
BEGIN;
SELECT granted FROM lease_acquire('s2', :'b');
SELECT revision = :r AS "not yet" FROM session_heartbeat(:'b');
ROLLBACK;
SELECT revision = :r AS "not at all" FROM session_heartbeat(:'b');

-- A session attached to this connection, until it is detached.
SELECT attached_pid = pg_backend_pid() AS attached FROM sessions WHERE session = :'c';
SELECT session_detach(:'c');
SELECT attached_pid FROM sessions WHERE session = :'c';
SELECT session_detach(:'c') AS again, session_detach(:'b') AS never, session_detach('00000000-0000-4000-8000-000000000000') AS unknown;

-- Draining: heartbeats, renewals and fenced work go on, and no new leases come.
SELECT granted, fence AS f FROM lease_acquire('s3', :'b') \gset
SELECT session_drain(:'b');
SELECT session_drain(:'b') AS again, session_drain('00000000-0000-4000-8000-000000000000') AS unknown;
SELECT state FROM sessions WHERE session = :'b';
SELECT alive, reason FROM session_heartbeat(:'b');
SELECT held, reason FROM lease_renew('s3', :f);
SELECT fence_check('s3', :f);
SELECT * FROM pg_temp.ask('s3', :'b');
SELECT * FROM pg_temp.ask('s4', :'b');
SELECT * FROM pg_temp.ask('s4', :'b', true);
SELECT resource, granted, reason FROM lease_acquire_many('{s3,s4}', :'b');
SELECT lease_release('s3', :f);
SELECT * FROM pg_temp.ask('s3', :'b');

-- Closed: all that the session held is free at once, and every call says that it has ended.
SELECT fence AS f FROM lease_acquire('s5', :'a') \gset
SELECT granted FROM lease_acquire('s6', :'a');
SELECT session_close(:'a');
SELECT session_close(:'a') AS again, session_close('00000000-0000-4000-8000-000000000000') AS unknown;
SELECT resource, state, consumer, released_at IS NOT NULL AS released FROM leases WHERE resource IN ('s5', 's6') ORDER BY 1;
SELECT count(*) FROM sessions WHERE session = :'a';
SELECT alive, trust_ms, expires_at, revision, reason IN ('expired', 'unknown_session') AS "has ended" FROM session_heartbeat(:'a');
SELECT alive, reason IN ('expired', 'unknown_session') AS "has ended" FROM session_wait(:'a', 0);
SELECT granted, fence, slot, holder, trust_ms, reason IN ('expired', 'unknown_session') AS "has ended" FROM lease_acquire('s5', :'a', true);
SELECT session_drain(:'a'), session_detach(:'a'), lease_release('s5', :f), lease_cancel('s5', :'a');
SELECT held, reason FROM lease_renew('s5', :f);

-- Opens, drains and closes that are rolled back, also to a savepoint, change nothing.
BEGIN;
SELECT session AS e FROM session_open('worker-5') \gset
SELECT alive, reason FROM session_heartbeat(:'e');
SELECT granted FROM lease_acquire('s7', :'e');
ROLLBACK;
SELECT alive, reason FROM session_heartbeat(:'e');
SELECT alive, reason FROM session_wait(:'e', 0);
SELECT granted, reason FROM lease_acquire('s7', :'e');
SELECT count(*) FROM sessions WHERE consumer = 'worker-5';

BEGIN;
SAVEPOINT one;
SELECT session AS e FROM session_open('worker-5') \gset
ROLLBACK TO one;
SELECT alive, reason FROM session_heartbeat(:'e');
SELECT session AS e FROM session_open('worker-5') \gset
SAVEPOINT two;
SELECT session_close(:'e');
SELECT granted, reason FROM lease_acquire('s7', :'e');
ROLLBACK TO two;
SELECT * FROM pg_temp.ask('s7', :'e');
SAVEPOINT three;
SELECT session_drain(:'e');
SELECT * FROM pg_temp.ask('s8', :'e');
ROLLBACK TO three;
SELECT * FROM pg_temp.ask('s8', :'e');
RELEASE three;
COMMIT;
SELECT consumer, state, leases FROM sessions WHERE session = :'e';
BEGIN;
SELECT session_close(:'e');
SELECT consumer FROM sessions WHERE session = :'e';
SELECT session_close(:'e') AS again;
ROLLBACK;
SELECT consumer, state, leases FROM sessions WHERE session = :'e';
SELECT alive, reason FROM session_heartbeat(:'e');
SELECT resource, state, consumer FROM leases WHERE resource IN ('s7', 's8') ORDER BY 1;

-- A session opened and closed in one transaction; an attached one, which cannot be prepared; all closed by one
-- statement.
BEGIN;
SELECT session AS g FROM session_open('worker-6') \gset
SELECT session_close(:'g');
COMMIT;
SELECT count(*) FROM sessions WHERE session = :'g';
BEGIN;
SELECT count(*) FROM session_open('worker-7', attach => true);
PREPARE TRANSACTION 'attached';
SELECT count(*) FROM sessions WHERE consumer = 'worker-7';
SELECT session_close(session) FROM (SELECT session FROM sessions ORDER BY consumer, ttl_ms) AS s;
SELECT count(*) FROM sessions;

-- A session expires while no process sweeps.
\i pg_test/sql/include/worker_off.psql
\pset null -
SELECT session AS a FROM session_open('short', '2 s') \gset
SELECT granted, fence AS f FROM lease_acquire('s9', :'a') \gset
SELECT session AS b FROM session_open('long') \gset
SELECT (pg_temp.ask('s9', :'b', true)).reason;
SELECT state, trust_ms BETWEEN 0 AND 2000 AS short FROM sessions WHERE session = :'a';
CALL pg_temp.wait_for(format('state = %L FROM eskit_lease.sessions WHERE session = %L', 'expired', :'a'));
SELECT alive, trust_ms, expires_at, revision, reason FROM session_heartbeat(:'a');
SELECT alive, trust_ms, expires_at, revision, reason FROM session_heartbeat(:'a');
SELECT alive, trust_ms, expires_at, revision, reason FROM session_wait(:'a', 0);
SELECT * FROM lease_acquire('s9', :'a');
SELECT * FROM lease_acquire('s10', :'a', true);
SELECT * FROM lease_acquire_many('{s9,s10}', :'a');
SELECT * FROM lease_release_many('{s9,s10}', :'a');
SELECT * FROM lease_renew('s9', :f);
SELECT lease_release('s9', :f), session_drain(:'a'), session_detach(:'a'), session_close(:'a');
SELECT pg_temp.error_of(format('SELECT fence_check(%L, %s)', 's9', :f));
SELECT state, trust_ms, expires_at, leases FROM sessions WHERE session = :'a';
SELECT resource, state, consumer, session = :'a' AS mine, fence = :f AS same, trust_ms, expires_at, waiters FROM leases WHERE resource = 's9';
SELECT resource, position, consumer, state, holder FROM waiters;
-- A sweep hands over and deletes the rows; with nothing to do it says so.
SELECT * FROM session_sweep();
SELECT consumer, state, leases FROM sessions;
SELECT resource, state, consumer, fence > :f AS greater FROM leases WHERE resource = 's9';
SELECT held, reason FROM lease_renew('s9', :f);
SELECT * FROM session_sweep(1);
SELECT session_close(:'b');
\i pg_test/sql/include/worker_on.psql
