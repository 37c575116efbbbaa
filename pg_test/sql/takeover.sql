-- Take-over: a restarted process inherits from its former session. The worker is off, so that what is seen is the
-- verbs' own doing.
\i pg_test/sql/include/worker_off.psql
\i pg_test/sql/include/groups.psql
\pset null -
-- What a session has and waits for.
CREATE FUNCTION pg_temp.has(wanted uuid) RETURNS text LANGUAGE sql AS $$
    SELECT string_agg(resource || CASE WHEN n > 1 THEN ' * ' || n ELSE '' END, ', ' ORDER BY resource)
    FROM (SELECT resource, count(*) AS n FROM eskit_lease.leases WHERE session = wanted AND state = 'held' GROUP BY 1) AS l
$$;
CREATE FUNCTION pg_temp.waits_for(wanted uuid) RETURNS text LANGUAGE sql AS $$
    -- The views of former versions show each place of a session in a line.
    SELECT string_agg(resource || ' ' || position, ', ' ORDER BY resource)
    FROM (SELECT resource, min(position) AS position FROM eskit_lease.waiters WHERE session = wanted GROUP BY 1) AS w
$$;

-- Nothing to take over: a session like any other.
SELECT session AS a, trust_ms BETWEEN 3590000 AND 3600000 AS trusted, revision > 0 AS revised
FROM session_open('a', '1 hour', takeover => true) \gset
SELECT :'trusted' AS trusted, :'revised' AS revised, pg_temp.has(:'a');
SELECT alive, reason FROM session_heartbeat(:'a');

-- The former session has leases, permits, places in line, memberships and partitions.
SELECT session AS b FROM session_open('b', '1 hour') \gset
SELECT session AS c FROM session_open('c', '1 hour') \gset
SELECT semaphore_create('s', 2);
SELECT group_create('g', 6), group_create('h', 3, 'range');
SELECT group_join('g', :'a') > 0 AS joined, group_join('g', :'b') > 0 AS joined, group_join('h', :'a') > 0 AS joined;
SELECT pg_temp.acknowledge('g', :'a');
SELECT fence AS f1 FROM lease_acquire('l1', :'a') \gset
SELECT fence AS f2 FROM lease_acquire('l2', :'a') \gset
SELECT fence AS fs, slot AS ss FROM lease_acquire('s', :'a') \gset
SELECT granted FROM unnest(ARRAY['q', 'p']) AS resource, lease_acquire(resource, :'b');
SELECT granted FROM lease_acquire('s', :'c');
SELECT reason FROM lease_acquire('q', :'c', true);
SELECT reason FROM unnest(ARRAY['q', 'p']) AS resource, lease_acquire(resource, :'a', true);
SELECT reason FROM lease_acquire('l1', :'c', true);
SELECT reason FROM lease_acquire('p', :'c', true);
SELECT pg_temp.has(:'a'), pg_temp.waits_for(:'a');
SELECT cursor_commit('g', min(partition), 5, min(fence)) FROM group_assignment('g', :'a');
CREATE TEMP TABLE before AS
SELECT partition, owner, session, fence, pg_temp.generation('g') AS generation FROM group_partitions WHERE group_name = 'g';
SELECT joined_at AS joined FROM group_members WHERE group_name = 'g' AND consumer = 'a' \gset
SELECT revision AS ra FROM session_heartbeat(:'a') \gset
SELECT revision AS rb FROM session_heartbeat(:'b') \gset
SELECT max(fence) AS highest FROM leases \gset
-- A take-over that is rolled back, also to a savepoint, leaves the old session alive, with all that it has.
BEGIN;
SAVEPOINT s;
SELECT session AS a2 FROM session_open('a', '1 hour', takeover => true) \gset
SELECT pg_temp.has(:'a'), pg_temp.has(:'a2'), pg_temp.waits_for(:'a2');
ROLLBACK TO s;
SELECT alive, revision = :ra AS same, reason FROM session_heartbeat(:'a');
SELECT pg_temp.has(:'a'), pg_temp.waits_for(:'a');
COMMIT;
BEGIN;
SELECT session AS a2 FROM session_open('a', '1 hour', takeover => true) \gset
ROLLBACK;
SELECT alive, revision = :ra AS same, reason FROM session_heartbeat(:'a');
SELECT alive, reason FROM session_heartbeat(:'a2');
SELECT pg_temp.has(:'a'), pg_temp.waits_for(:'a');
SELECT held, reason FROM lease_renew('l1', :f1);
SELECT fence_check('l1', :f1);
-- Once it is committed, the old session is dead.
SELECT session AS a2, revision AS ra2 FROM session_open('a', '1 hour', takeover => true) \gset
SELECT alive, trust_ms, expires_at, revision, reason FROM session_heartbeat(:'a');
SELECT alive, reason FROM session_heartbeat(:'a2');
SELECT pg_temp.has(:'a'), pg_temp.waits_for(:'a'), pg_temp.has(:'a2'), pg_temp.waits_for(:'a2');
SELECT consumer, leases, waiting_for FROM sessions WHERE consumer IN ('a', 'b', 'c') ORDER BY 1;
-- The successor holds everything under new fences; the old ones are of no use.
SELECT min(fence) > :highest AS greater, count(*), count(DISTINCT fence) FROM leases WHERE session = :'a2';
SELECT granted, fence > :f1 AS greater, reason FROM lease_acquire('l1', :'a2');
SELECT granted, fence > :fs AS greater, slot = :ss AS "same slot", reason FROM lease_acquire('s', :'a2');
SELECT * FROM lease_renew('l1', :f1);
SELECT * FROM lease_renew('s', :fs);
SELECT pg_temp.error_of(format('SELECT fence_check(''l1'', %s)', :f1));
SELECT pg_temp.error_of(format('SELECT fence_check(''s'', %s)', :fs));
SELECT lease_release('l1', :f1), lease_release('s', :fs);
SELECT split_part(pg_temp.error_of(format('SELECT * FROM group_assignment(''g'', %L)', :'a')), ':', 1);
-- The successor has the same places in line, in the same order.
SELECT resource, position, consumer FROM waiters ORDER BY 1, 2;
-- The successor owns the same partitions, without a move for other members or a new generation.
SELECT group_name, consumer, session = :'a2' AS successor, state, partitions, targets FROM group_members ORDER BY 1, 2;
SELECT joined_at = :'joined' AS "since then" FROM group_members WHERE group_name = 'g' AND consumer = 'a';
SELECT owner, count(*), bool_and(p.session = b.session) AS "same session", bool_and(p.fence = b.fence) AS "same fence", bool_and(p.fence > b.fence) AS greater
FROM group_partitions AS p JOIN before AS b USING (partition, owner) WHERE group_name = 'g' GROUP BY 1 ORDER BY 1;
SELECT * FROM pg_temp.mine('g', :'a2');
SELECT * FROM pg_temp.mine('g', :'b');
SELECT pg_temp.generation('g') = generation AS "same generation" FROM before LIMIT 1;
SELECT revision = :rb AS "nothing new" FROM session_heartbeat(:'b');
-- The successor goes on with the cursor, and gets the next release in its turn.
SELECT cursor_position('g', min(partition)), cursor_commit('g', min(partition), 6, min(fence)) FROM group_assignment('g', :'a2');
SELECT lease_release('p', fence) FROM lease_acquire('p', :'b');
SELECT pg_temp.has(:'a2'), pg_temp.waits_for(:'a2');
SELECT lease_release('q', fence) FROM lease_acquire('q', :'b');
SELECT lease_release('q', fence) FROM lease_acquire('q', :'c');
SELECT pg_temp.has(:'a2'), pg_temp.waits_for(:'a2');
SELECT lease_release('l1', fence) FROM lease_acquire('l1', :'a2');
SELECT consumer FROM leases WHERE resource = 'l1';
SELECT count(*) > 0 AS swept FROM session_sweep();
SELECT pg_temp.has(:'a2'), pg_temp.waits_for(:'a2');
SELECT count(*) FROM eskit_lease._successions;

-- A partition that was being revoked stays so, and one whose target was the predecessor goes to the successor.
SELECT group_join('h', :'c') > 0 AS joined;
SELECT * FROM pg_temp.who('h');
SELECT session AS a3 FROM session_open('a', '1 hour', takeover => true) \gset
SELECT * FROM pg_temp.mine('h', :'a3');
SELECT max(revoke_in) <= '30 s' AS "is to answer in time" FROM group_assignment('h', :'a3');
SELECT session AS c2 FROM session_open('c', '1 hour', takeover => true) \gset
SELECT * FROM pg_temp.who('h');
SELECT pg_temp.acknowledge('h', :'a3');
SELECT * FROM pg_temp.mine('h', :'c2');
SELECT * FROM pg_temp.who('h');

-- Only sessions of the same name are taken over.
SELECT session AS x FROM session_open('A', '1 hour', takeover => true) \gset
SELECT session AS y FROM session_open('a ', '1 hour', takeover => true) \gset
SELECT pg_temp.has(:'x'), pg_temp.has(:'y'), pg_temp.has(:'a3');
SELECT alive FROM session_heartbeat(:'a3');
-- Without takeover => true nothing is taken over.
SELECT session AS z FROM session_open('a', '1 hour') \gset
SELECT pg_temp.has(:'z'), pg_temp.has(:'a3');
SELECT session_close(session) FROM unnest(ARRAY[:'x', :'y', :'z']::uuid[]) AS session;
-- Only the same role takes over, not a member of it.
CREATE ROLE regress_takeover;
CREATE ROLE regress_takeover_member;
GRANT regress_takeover TO regress_takeover_member;
SELECT grant_consumer('regress_takeover');
SET ROLE regress_takeover;
SELECT session AS r FROM eskit_lease.session_open('a', '1 hour', takeover => true) \gset
SELECT granted FROM eskit_lease.lease_acquire('theirs', :'r');
SET ROLE regress_takeover_member;
SELECT session AS m FROM eskit_lease.session_open('a', '1 hour', takeover => true) \gset
SELECT alive FROM eskit_lease.session_heartbeat(:'r');
SELECT session_close FROM eskit_lease.session_close(:'m');
RESET ROLE;
SELECT alive FROM session_heartbeat(:'a3');
SELECT pg_temp.has(:'r'), pg_temp.has(:'a3');
SET ROLE regress_takeover;
SELECT session AS r2 FROM eskit_lease.session_open('a', '1 hour', takeover => true) \gset
SELECT alive, reason FROM eskit_lease.session_heartbeat(:'r');
RESET ROLE;
SELECT pg_temp.has(:'r2'), pg_temp.has(:'a3');
SELECT session_close(:'r2');
DROP OWNED BY regress_takeover;
DROP ROLE regress_takeover, regress_takeover_member;

-- Private sessions of lock_acquire and grace are not taken over.
SELECT granted, fence AS lf FROM lock_acquire('lock', 'a', '1 hour') \gset
SELECT fence AS gf FROM lease_acquire('in grace', :'a3') \gset
SELECT lease_release('in grace', :gf, '1 hour');
SELECT session AS a4 FROM session_open('a', '1 hour', takeover => true) \gset
SELECT pg_temp.has(:'a3'), pg_temp.has(:'a4');
SELECT held, reason FROM lease_renew('lock', :lf);
SELECT fence_check('lock', :lf);
SELECT held, reason FROM lease_renew('in grace', :gf);
-- The successor may acquire a lease that its predecessor released with grace: under a new fence, as the former process
-- may still work under the old one.
SELECT granted, fence > :gf AS newer, fence AS ngf, reason FROM lease_acquire('in grace', :'a4') \gset
SELECT :'granted' AS granted, :'newer' AS newer, :'reason' AS reason;
SELECT reason FROM lease_acquire('in grace', :'a4');
SELECT held, reason FROM lease_renew('in grace', :gf);
SELECT lease_release('lock', :lf), lease_release('in grace', :gf), lease_release('in grace', :ngf);
-- A successor with a permit does not get its predecessor's permit in grace.
SELECT semaphore_create('two', 2);
SELECT session AS p1 FROM session_open('p', '1 hour') \gset
SELECT session AS p2 FROM session_open('p', '1 hour') \gset
SELECT fence AS pf FROM lease_acquire('two', :'p1') \gset
SELECT granted FROM lease_acquire('two', :'p2');
SELECT lease_release('two', :pf, '1 hour');
SELECT session AS p3 FROM session_open('p', '1 hour', takeover => true) \gset
SELECT reason FROM lease_acquire('two', :'p3');
SELECT s.private FROM eskit_lease._leases AS l JOIN eskit_lease._sessions AS s USING (session) WHERE resource = 'two' ORDER BY 1;
-- Without a permit of its own, the successor gets it.
SELECT lease_release('two', fence) FROM eskit_lease._leases WHERE resource = 'two' AND session = :'p3';
SELECT granted, fence > :pf AS newer, reason FROM lease_acquire('two', :'p3');
SELECT session_close(:'p3');
SELECT semaphore_drop('two');

-- Several predecessors are all taken over. If they held or waited for the same name, the successor has it once.
SELECT session AS n1 FROM session_open('n', '1 hour') \gset
SELECT session AS n2 FROM session_open('n', '1 hour') \gset
SELECT session AS n3 FROM session_open('n', '1 hour') \gset
SELECT group_create('many', 6), semaphore_create('t', 3);
SELECT group_join('many', session) > 0 AS joined FROM unnest(ARRAY[:'n1', :'n2', :'n3', :'b']::uuid[]) AS session;
SELECT count(pg_temp.acknowledge('many', session)) FROM unnest(ARRAY[:'n1', :'n2', :'n3']::uuid[]) AS session;
SELECT count(*) FROM unnest(ARRAY[:'n1', :'n2', :'n3']::uuid[]) AS session, lease_acquire('t', session) WHERE granted;
SELECT reason FROM lease_acquire('busy', :'b');
SELECT reason FROM unnest(ARRAY[:'n1', :'c2', :'n2']::uuid[]) AS session, lease_acquire('busy', session, true);
SELECT granted FROM lease_acquire('n1''s', :'n1');
SELECT granted FROM lease_acquire('n2''s', :'n2');
SELECT reason FROM lease_acquire('n1''s', :'n2', true);
SELECT partitions AS "b's" FROM group_members WHERE group_name = 'many' AND consumer = 'b';
SELECT session AS n FROM session_open('n', '1 hour', takeover => true) \gset
SELECT reason FROM unnest(ARRAY[:'n1', :'n2', :'n3']::uuid[]) AS session, session_heartbeat(session);
SELECT pg_temp.has(:'n'), pg_temp.waits_for(:'n');
SELECT resource, min(position) AS position, consumer FROM waiters WHERE resource = 'busy' GROUP BY 1, 3 ORDER BY 2;
SELECT permits, held FROM semaphores WHERE name = 't';
SELECT consumer, state FROM group_members WHERE group_name = 'many' ORDER BY 1;
SELECT count(*) > 0 AS swept FROM session_sweep();
SELECT pg_temp.has(:'n'), pg_temp.waits_for(:'n');
SELECT permits, held FROM semaphores WHERE name = 't';
SELECT reason FROM lease_acquire('t', :'n');
SELECT owner, state, target, count(*) FROM group_partitions WHERE group_name = 'many' GROUP BY 1, 2, 3 ORDER BY 1, 2, 3;

-- Several take-overs in one transaction, also of sessions and leases that it made itself.
BEGIN;
SELECT session AS v1 FROM session_open('v', '1 hour', takeover => true) \gset
SELECT granted FROM lease_acquire('v', :'v1');
SELECT session AS v2 FROM session_open('v', '1 hour', takeover => true) \gset
SELECT session AS v3 FROM session_open('v', '1 hour', takeover => true) \gset
COMMIT;
SELECT reason FROM unnest(ARRAY[:'v1', :'v2', :'v3']::uuid[]) AS session, session_heartbeat(session);
SELECT pg_temp.has(:'v3');
-- A fenced lease does not stay behind if this transaction itself has checked the fence.
SELECT fence AS fv FROM lease_acquire('v', :'v3') \gset
BEGIN;
SELECT fence_check('v', :fv);
SELECT session AS v4 FROM session_open('v', '1 hour', takeover => true) \gset
SELECT split_part(pg_temp.error_of(format('SELECT fence_check(''v'', %s)', :fv)), ':', 1);
SELECT pg_temp.has(:'v4');
COMMIT;
SELECT pg_temp.has(:'v4');
-- A predecessor that drains, has expired, or was closed.
SELECT session_drain(:'v4');
SELECT session AS v5 FROM session_open('v', '1 hour', takeover => true) \gset
SELECT pg_temp.has(:'v5');
SELECT granted FROM lease_acquire('new', :'v5');
SELECT session_close(:'v5');
SELECT session AS v6 FROM session_open('v', '1 hour', takeover => true) \gset
SELECT pg_temp.has(:'v6');
SELECT session AS w FROM session_open('w', '1 s') \gset
SELECT granted FROM lease_acquire('w', :'w');
CALL pg_temp.wait_for('state = ''expired'' FROM eskit_lease.leases WHERE resource = ''w''');
SELECT session AS w2 FROM session_open('w', '1 hour', takeover => true) \gset
SELECT pg_temp.has(:'w2');
-- A session of this name that another role has opened stays. One that finds no other is told.
CREATE ROLE regress_former;
CREATE ROLE regress_taker;
SELECT grant_consumer('regress_former');
SELECT grant_consumer('regress_taker');
SET ROLE regress_former;
SELECT session AS former FROM session_open('two roles', '1 hour') \gset
SELECT granted FROM lease_acquire('of the former', :'former');
SET ROLE regress_taker;
SELECT session AS taker FROM session_open('two roles', '1 hour') \gset
SELECT session_close(:'taker');
SELECT session AS taker FROM session_open('two roles', '1 hour', takeover => true) \gset
SELECT granted, holder FROM lease_acquire('of the former', :'taker');
SELECT session AS taker FROM session_open('two roles', '1 hour', takeover => true) \gset
SELECT session_close(:'taker');
RESET ROLE;
SELECT session_close(:'former');
SET ROLE regress_taker;
SELECT session AS taker FROM session_open('two roles', '1 hour', takeover => true) \gset
SELECT session_close(:'taker');
RESET ROLE;
DROP OWNED BY regress_former, regress_taker;
DROP ROLE regress_former, regress_taker;
-- Many leases: more than one batch.
SELECT count(*) FROM lease_acquire_many(ARRAY(SELECT 'bulk-' || i FROM generate_series(1, 2500) AS i), :'w2') WHERE granted;
SELECT session AS w3 FROM session_open('w', '1 hour', takeover => true) \gset
SELECT count(*), count(DISTINCT fence) FROM leases WHERE session = :'w3' AND state = 'held';
SELECT count(*) FROM leases WHERE session = :'w2';


-- With the worker: a successor that does not release the partitions revoked from its predecessor loses them, and keeps
-- the rest.
\i pg_test/sql/include/worker_on.psql
\i pg_test/sql/include/groups.psql
SELECT group_create('late', 2, rebalance_timeout => '1 s');
SELECT group_join('late', :'w3') > 0 AS joined, group_join('late', :'n') > 0 AS joined;
SELECT session AS w4 FROM session_open('w', '1 hour', takeover => true) \gset
CALL pg_temp.wait_for('count(*) = 1 FROM eskit_lease.group_partitions WHERE group_name = ''late'' AND owner = ''n''');
SELECT * FROM pg_temp.who('late');

SELECT session_close(session) FROM sessions WHERE state <> 'expired';
CALL pg_temp.wait_for('count(*) = 0 FROM eskit_lease.sessions');
CALL pg_temp.wait_for('count(*) = 0 FROM eskit_lease._successions');
CALL pg_temp.wait_for('count(*) = 0 FROM eskit_lease.leases WHERE state <> ''free''');
SELECT group_drop(group_name) FROM groups;
SELECT semaphore_drop(name) FROM semaphores;
