-- Many partitions are released in one step, each to its target. The worker is off, so that what is seen is the verbs'
-- own doing.
\i pg_test/sql/include/worker_off.psql
\i pg_test/sql/include/groups.psql
\i pg_test/sql/include/refusals.psql
\pset null -

SELECT session AS a FROM session_open('a', '1 hour') \gset
SELECT session AS b FROM session_open('b', '1 hour') \gset
SELECT session AS c FROM session_open('c', '1 hour') \gset
SELECT group_create('g', 9);
SELECT group_join('g', :'a') > 0 AS joined, group_join('g', :'b') > 0 AS joined, group_join('g', :'c') > 0 AS joined;
SELECT array_agg(partition) AS ps, array_agg(fence) AS fs, count(*) AS revoked FROM group_assignment('g', :'a') WHERE state = 'revoking' \gset
SELECT revision AS rb FROM session_heartbeat(:'b') \gset
SELECT revision AS rc FROM session_heartbeat(:'c') \gset
SELECT count(*) = :revoked AS all, bool_and(released) AS released, array_agg(partition) = :'ps' AS "in order" FROM group_release_many('g', :'ps', :'fs');
SELECT owner, state, target, count(*) FROM group_partitions WHERE group_name = 'g' GROUP BY 1, 2, 3 ORDER BY 1;
SELECT b.revision > :rb AND c.revision > :rc AS told FROM session_heartbeat(:'b') AS b, session_heartbeat(:'c') AS c;
-- These fences hold nothing any more. Partitions that were not being revoked go back to their owner, under new fences.
SELECT bool_or(released) AS released FROM group_release_many('g', :'ps', :'fs');
SELECT partition AS p, fence AS f FROM group_assignment('g', :'a') ORDER BY 1 LIMIT 1 \gset
SELECT released FROM group_release_many('g', ARRAY[:p], ARRAY[:f]);
SELECT state, fence > :f AS greater FROM group_assignment('g', :'a') WHERE partition = :p;
SELECT * FROM group_release_many('g', '{}', '{}');
SELECT released FROM group_release_many('g', '{8}', '{1}');
-- Partitions of several sessions are released, and that is rolled back.
BEGIN;
SELECT count(*) FILTER (WHERE r.released)
FROM (SELECT array_agg(partition), array_agg(fence) FROM unnest(ARRAY[:'a', :'b', :'c']::uuid[]) AS s, group_assignment('g', s)) AS x (ps, fs),
     group_release_many('g', x.ps, x.fs) AS r;
ROLLBACK;
SELECT owner, state, count(*) FROM group_partitions WHERE group_name = 'g' GROUP BY 1, 2 ORDER BY 1;

-- A target that has departed or died, or drains, gets no partition: the group is judged.
SELECT session AS d FROM session_open('d', '1 hour') \gset
SELECT group_join('g', :'d') > 0 AS joined;
SELECT session_drain(:'d');
SELECT pg_temp.acknowledge('g', :'a') + pg_temp.acknowledge('g', :'b') + pg_temp.acknowledge('g', :'c');
SELECT owner, state, target, count(*) FROM group_partitions WHERE group_name = 'g' GROUP BY 1, 2, 3 ORDER BY 1;
SELECT session_close(:'d');

-- More partitions than the call locks one by one: all are handed over, or freed if no member is their target.
SELECT group_create('wide', 700);
SELECT group_join('wide', :'a') > 0 AS joined, group_join('wide', :'b') > 0 AS joined;
SELECT count(*) FILTER (WHERE r.released) AS released, count(*)
FROM (SELECT array_agg(partition), array_agg(fence) FROM group_assignment('wide', :'a')) AS x (ps, fs), group_release_many('wide', x.ps, x.fs) AS r;
SELECT owner, state, target, count(*) FROM group_partitions WHERE group_name = 'wide' GROUP BY 1, 2, 3 ORDER BY 1;
SELECT group_resize('wide', 4, drain => true);
SELECT count(*) FILTER (WHERE r.released) AS released
FROM (SELECT array_agg(partition), array_agg(fence) FROM group_assignment('wide', :'a')) AS x (ps, fs), group_release_many('wide', x.ps, x.fs) AS r;
SELECT partitions, resize_to FROM groups WHERE group_name = 'wide';
SELECT count(*) FILTER (WHERE r.released) AS released
FROM (SELECT array_agg(partition), array_agg(fence) FROM group_assignment('wide', :'b')) AS x (ps, fs), group_release_many('wide', x.ps, x.fs) AS r;
-- The next caller judges the group, which completes the resize.
SELECT count(*) FROM group_assignment('wide', :'a');
SELECT partitions, resize_to FROM groups WHERE group_name = 'wide';

-- Refusals: if one partition is refused, none is released.
SELECT fence AS f FROM group_assignment('g', :'a') ORDER BY partition LIMIT 1 \gset
SELECT pg_temp.refused(
    'group_release_many(NULL, ''{0}'', ''{1}'')', 'group_release_many(''g'', NULL, ''{1}'')', 'group_release_many(''g'', ''{0}'', NULL)',
    'group_release_many(''g'', ''{NULL}'', ''{1}'')', 'group_release_many(''g'', ''{0}'', ''{NULL}'')', 'group_release_many(''g'', ''{0,1}'', ''{1}'')',
    'group_release_many(''g'', ''{1,0,1}'', ''{1,2,3}'')', 'group_release_many(''g'', ''{9}'', ''{1}'')', 'group_release_many(''g'', ''{-1}'', ''{1}'')',
    'group_release_many(''none'', ''{0}'', ''{1}'')');
CREATE ROLE regress_release_many;
SELECT grant_consumer('regress_release_many');
SET ROLE regress_release_many;
SELECT pg_temp.error_of(format('SELECT eskit_lease.group_release_many(''g'', ARRAY[%s], ARRAY[%s])', :p, :f));
RESET ROLE;
DROP OWNED BY regress_release_many;
DROP ROLE regress_release_many;

-- A member that asks for its assignment in an open transaction does not lock the group, though no other process judges
-- it.
UPDATE eskit_lease._groups SET stale = true WHERE group_name = 'g';
BEGIN;
SELECT count(*) > 0 AS owns FROM group_assignment('g', :'a');
SELECT count(*) AS locked FROM eskit_lease._groups WHERE group_name = 'g' AND pg_current_xact_id_if_assigned()::xid IN (xmin, xmax);
ROLLBACK;
SELECT stale FROM eskit_lease._groups WHERE group_name = 'g';
-- The transaction judges the group at its commit, unless it has become read-only, or the call's savepoint was rolled
-- back.
BEGIN;
SELECT count(*) > 0 AS owns FROM group_assignment('g', :'a');
SET TRANSACTION READ ONLY;
COMMIT;
BEGIN;
SAVEPOINT s;
SELECT count(*) > 0 AS owns FROM group_assignment('g', :'a');
ROLLBACK TO s;
COMMIT;
SELECT stale FROM eskit_lease._groups WHERE group_name = 'g';
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT count(*) > 0 AS owns FROM group_assignment('g', :'a');
COMMIT;
SELECT stale FROM eskit_lease._groups WHERE group_name = 'g';

-- A member that drains alone in its group must release all that it owns, and the view says so, too.
SELECT session AS e FROM session_open('e', '1 hour') \gset
SELECT group_create('alone', 2);
SELECT group_join('alone', :'e') > 0 AS joined;
SELECT session_drain(:'e');
SELECT * FROM pg_temp.mine('alone', :'e');
SELECT * FROM pg_temp.who('alone');
SELECT pg_temp.acknowledge('alone', :'e');
SELECT * FROM pg_temp.who('alone');

SELECT session_close(session) FROM sessions ORDER BY consumer, opened_at;
SELECT group_drop(group_name) FROM groups ORDER BY group_name;
\i pg_test/sql/include/worker_on.psql
