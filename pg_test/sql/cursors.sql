-- Cursors: how far a group has come. The worker is off, so that what is seen is the verbs' own doing.
\i pg_test/sql/include/worker_off.psql
\i pg_test/sql/include/refusals.psql
\i pg_test/sql/include/groups.psql
\pset null -
SELECT session AS a FROM session_open('a', '1 hour') \gset
SELECT session AS b FROM session_open('b', '1 hour') \gset
SELECT group_create('g', 2, rebalance_timeout => '1 hour');
SELECT group_join('g', :'a') > 0 AS joined;
SELECT fence AS f FROM group_assignment('g', :'a') WHERE partition = 0 \gset
SELECT fence AS f1 FROM group_assignment('g', :'a') WHERE partition = 1 \gset

-- Nothing is done yet. Then the cursor moves only forward.
SELECT cursor_position('g', 0), cursor_position('g', 1);
SELECT partition, position, head, lag, acked_ahead, fence, committed_at, reported_at FROM group_lag ORDER BY 1;
SELECT cursor_commit('g', 0, 1, :f);
SELECT cursor_commit('g', 0, 10, :f);
SELECT cursor_commit('g', 0, 10, :f) AS "is there", cursor_commit('g', 0, 9, :f) AS behind;
SELECT cursor_position('g', 0), cursor_position('g', 1);
SELECT partition, position, fence = :f AS fence, committed_at < clock_timestamp() AS committed FROM group_lag ORDER BY 1;
SELECT cursor_commit('g', 1, 9223372036854775806, :f1);
SELECT cursor_position('g', 1);
SELECT cursor_ack('g', 1, 9223372036854775806, :f1) AS "the last";

-- Acknowledged in any order: the cursor is the end of the contiguous part.
SELECT group_create('acks', 4, rebalance_timeout => '1 hour');
SELECT group_join('acks', :'a') > 0 AS joined;
SELECT fence AS a0 FROM group_assignment('acks', :'a') WHERE partition = 0 \gset
SELECT fence AS a1 FROM group_assignment('acks', :'a') WHERE partition = 1 \gset
SELECT fence AS a2 FROM group_assignment('acks', :'a') WHERE partition = 2 \gset
SELECT fence AS a3 FROM group_assignment('acks', :'a') WHERE partition = 3 \gset
SELECT position, cursor_ack('acks', 0, position, :a0) FROM unnest(ARRAY[1, 2, 4, 3]) AS position;
SELECT position, cursor_ack('acks', 0, position, :a0) FROM unnest(ARRAY[3, 1, 7, 7, 6, 4, 9, 5, 8]) AS position;
SELECT position, acked_ahead FROM group_lag WHERE group_name = 'acks' AND partition = 0;
-- The first acknowledgement is not for the first position.
SELECT position, cursor_ack('acks', 1, position, :a1) FROM unnest(ARRAY[3, 2, 5, 1]) AS position;
SELECT position, acked_ahead FROM group_lag WHERE group_name = 'acks' AND partition = 1;
-- A commit absorbs acknowledgements up to its position and those that continue it without a gap. Those beyond stay.
SELECT position, cursor_ack('acks', 2, position, :a2) FROM unnest(ARRAY[3, 4, 6, 7, 10, 20]) AS position;
SELECT cursor_commit('acks', 2, 5, :a2);
SELECT position, acked_ahead FROM group_lag WHERE group_name = 'acks' AND partition = 2;
SELECT cursor_commit('acks', 2, 7, :a2) AS "is there", cursor_commit('acks', 2, 10, :a2);
SELECT position, acked_ahead FROM group_lag WHERE group_name = 'acks' AND partition = 2;
SELECT cursor_commit('acks', 2, 15, :a2), cursor_ack('acks', 2, 12, :a2) AS "long done", cursor_ack('acks', 2, 19, :a2), cursor_ack('acks', 2, 17, :a2);
SELECT position, acked_ahead FROM group_lag WHERE group_name = 'acks' AND partition = 2;
SELECT cursor_commit('acks', 2, 100, :a2);
SELECT position, acked_ahead FROM group_lag WHERE group_name = 'acks' AND partition = 2;
-- Any order of acknowledgements gives the same cursor.
SELECT count(cursor_ack('acks', 3, position, :a3)) FROM (SELECT i * 7 % 101 AS position FROM generate_series(1, 100) AS i) AS shuffled;
SELECT position, acked_ahead FROM group_lag WHERE group_name = 'acks' AND partition = 3;

-- A move is rolled back with the caller's transaction, or with its savepoint.
BEGIN;
SELECT cursor_commit('g', 0, 20, :f);
SELECT cursor_position('g', 0);
ROLLBACK;
SELECT cursor_position('g', 0);
BEGIN;
SELECT cursor_commit('g', 0, 20, :f);
SAVEPOINT s;
SELECT cursor_commit('g', 0, 30, :f);
SELECT cursor_ack('g', 0, 32, :f), cursor_ack('g', 0, 31, :f);
ROLLBACK TO s;
SELECT cursor_position('g', 0);
SELECT cursor_ack('g', 0, 21, :f);
COMMIT;
SELECT cursor_position('g', 0);
SELECT position, acked_ahead FROM group_lag WHERE group_name = 'g' AND partition = 0;
-- One transaction moves the cursor more often than a page has room for its versions: versions on other pages are found,
-- too.
BEGIN;
SELECT count(*) FROM generate_series(1001, 2000) AS position, cursor_commit('g', 0, position, :f) AS moved WHERE moved;
SELECT cursor_position('g', 0), (SELECT (ctid::text::point)[0] > 0 FROM eskit_lease._cursors WHERE group_name = 'g' AND partition = 0) AS "on another page",
    (SELECT count(*) FROM eskit_lease._cursors WHERE group_name || '' = 'g' AND partition + 0 = 0) AS rows;
ROLLBACK;
SELECT cursor_position('g', 0);
-- cursor_commit fences the transaction, as fence_check does.
BEGIN;
SELECT cursor_commit('g', 0, 22, :f);
SELECT doing, resource, consumer, granted FROM blockers ORDER BY 1;
COMMIT;
SELECT count(*) FROM blockers;

-- Only the present fence of the same partition is valid.
SELECT pg_temp.refused(
    format('cursor_commit(''g'', 0, 50, %s)', :f + 1000000), format('cursor_commit(''g'', 0, 50, %s)', :f - 1000000),
    format('cursor_commit(''g'', 0, 50, %s)', :f1), format('cursor_ack(''g'', 0, 50, %s)', :f1), format('cursor_ack(''g'', 1, 50, %s)', :f),
    'cursor_commit(''g'', 0, 50, 0)', 'cursor_commit(''g'', 0, 50, -1)', format('cursor_commit(''acks'', 0, 50, %s)', :f));
-- A position behind the cursor is refused, too, under another partition's fence.
SELECT pg_temp.refused(format('cursor_commit(''g'', 0, 1, %s)', :f1), format('cursor_ack(''g'', 0, 1, %s)', :f1));
-- Handed over: the new owner reads what the old one has committed, whose later commits are refused.
SELECT group_join('g', :'b') > 0 AS joined;
SELECT cursor_commit('g', 1, 9223372036854775806, :f1) AS "good until released";
SELECT pg_temp.acknowledge('g', :'a');
SELECT partition AS p, fence AS h FROM group_assignment('g', :'b') \gset
SELECT cursor_position('g', :p);
SELECT pg_temp.refused(format('cursor_commit(''g'', %s, 9223372036854775806, %s)', :p, :f1), format('cursor_ack(''g'', %s, 1, %s)', :p, :f1));
SELECT cursor_commit('g', :p, 1, :h) AS behind;
SELECT group_leave('g', :'b');
SELECT session_close(:'b');
SELECT pg_temp.refused(format('cursor_commit(''g'', %s, 1, %s)', :p, :h));
-- Released and free; expired.
SELECT group_create('gone', 1);
SELECT session AS b FROM session_open('b', '1 s') \gset
SELECT group_join('gone', :'b') > 0 AS joined;
SELECT fence AS k FROM group_partitions WHERE group_name = 'gone' \gset
CALL pg_temp.wait_for('state = ''expired'' FROM eskit_lease.group_partitions WHERE group_name = ''gone''');
SELECT pg_temp.refused(format('cursor_commit(''gone'', 0, 1, %s)', :k), format('cursor_ack(''gone'', 0, 1, %s)', :k));
SELECT group_leave('gone', :'b');
SELECT group_join('gone', :'a') > 0 AS joined;
SELECT fence AS k FROM group_assignment('gone', :'a') \gset
SELECT group_leave('gone', :'a');
SELECT pg_temp.refused(format('cursor_commit(''gone'', 0, 1, %s)', :k));
SELECT group_drop('gone');

-- Isolation levels: a fence granted after the snapshot, even in the same transaction, raises 40001; nothing else does.
SELECT group_create('iso', 1);
SELECT group_join('iso', :'a') > 0 AS joined;
SELECT fence AS i FROM group_assignment('iso', :'a') \gset
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT group_release('iso', 0, :i);
SELECT fence AS i FROM group_assignment('iso', :'a') \gset
SELECT pg_temp.refused(format('cursor_commit(''iso'', 0, 1, %s)', :i), format('cursor_ack(''iso'', 0, 1, %s)', :i));
SELECT cursor_position('iso', 0), cursor_report_head('iso', 0, 5);
COMMIT;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT cursor_commit('iso', 0, 1, :i), cursor_commit('iso', 0, 2, :i), cursor_ack('iso', 0, 4, :i), cursor_ack('iso', 0, 3, :i);
SELECT cursor_position('iso', 0);
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT cursor_commit('iso', 0, 5, :i), cursor_ack('iso', 0, 6, :i), cursor_commit('iso', 0, 1, :i) AS behind;
COMMIT;
SELECT cursor_position('iso', 0);
BEGIN;
SELECT group_release('iso', 0, :i);
SELECT fence AS i FROM group_assignment('iso', :'a') \gset
SELECT cursor_commit('iso', 0, 7, :i) AS "granted in the same transaction";
COMMIT;
SELECT group_leave('iso', :'a');
SELECT group_drop('iso');

-- Heads and lag.
SELECT cursor_report_head('acks', 0, 15), cursor_report_head('acks', 0, 15) AS "is known", cursor_report_head('acks', 0, 14) AS older, cursor_report_head('acks', 1, 2), cursor_report_head('acks', 3, 101);
SELECT partition, position, head, lag, acked_ahead, fence IS NOT NULL AS committed, reported_at < clock_timestamp() AS reported
FROM group_lag WHERE group_name = 'acks' ORDER BY 1;
BEGIN;
SELECT cursor_report_head('acks', 0, 16), cursor_report_head('acks', 2, 1000);
ROLLBACK;
SELECT partition, head, lag FROM group_lag WHERE group_name = 'acks' ORDER BY 1;
SELECT cursor_report_head('acks', 0, 9223372036854775806);
SELECT lag FROM group_lag WHERE group_name = 'acks' AND partition = 0;

-- Invalid positions, partitions and groups; NULLs; read-only transactions.
\pset format unaligned
\pset tuples_only on
SELECT pg_temp.refused(
    format('cursor_commit(''g'', 0, 0, %s)', :f), format('cursor_commit(''g'', 0, -1, %s)', :f),
    format('cursor_commit(''g'', 0, 9223372036854775807, %s)', :f), format('cursor_ack(''g'', 0, 0, %s)', :f),
    format('cursor_ack(''g'', 0, -9223372036854775808, %s)', :f), format('cursor_ack(''g'', 0, 9223372036854775807, %s)', :f),
    'cursor_report_head(''g'', 0, 0)', 'cursor_report_head(''g'', 0, 9223372036854775807)');
SELECT pg_temp.refused(
    format('cursor_commit(''g'', -1, 50, %s)', :f), format('cursor_commit(''g'', 2, 50, %s)', :f), format('cursor_ack(''g'', 2, 50, %s)', :f),
    'cursor_position(''g'', 2)', 'cursor_position(''g'', -1)', 'cursor_report_head(''g'', 2, 50)');
SELECT semaphore_create('sem', 1);
SELECT pg_temp.refused(
    format('cursor_commit(''none'', 0, 50, %s)', :f), format('cursor_ack(''none'', 0, 50, %s)', :f), 'cursor_position(''none'', 0)',
    'cursor_report_head(''none'', 0, 50)', format('cursor_commit(''sem'', 0, 50, %s)', :f), 'cursor_position(''sem'', 0)');
SELECT pg_temp.refused(
    format('cursor_commit(NULL, 0, 50, %s)', :f), format('cursor_commit(''g'', NULL, 50, %s)', :f), format('cursor_commit(''g'', 0, NULL, %s)', :f),
    'cursor_commit(''g'', 0, 50, NULL)', format('cursor_ack(NULL, 0, 50, %s)', :f), format('cursor_ack(''g'', NULL, 50, %s)', :f),
    format('cursor_ack(''g'', 0, NULL, %s)', :f), 'cursor_ack(''g'', 0, 50, NULL)', 'cursor_position(NULL, 0)', 'cursor_position(''g'', NULL)',
    'cursor_report_head(NULL, 0, 50)', 'cursor_report_head(''g'', NULL, 50)', 'cursor_report_head(''g'', 0, NULL)');
BEGIN READ ONLY;
SELECT cursor_position('g', 0);
SELECT pg_temp.refused(
    format('cursor_commit(''g'', 0, 50, %s)', :f), format('cursor_ack(''g'', 0, 50, %s)', :f), 'cursor_report_head(''g'', 0, 50)');
COMMIT;
-- The largest number of ranges of acknowledgements, and one more. A call that closes a gap, or is already done,
-- succeeds.
SELECT group_create('full', 1);
SELECT group_join('full', :'a') > 0 AS joined;
SELECT fence AS u FROM group_assignment('full', :'a') \gset
SELECT cursor_ack('full', 0, 2, :u);
-- (Written into the table, as so many calls would take long.)
UPDATE eskit_lease._cursors SET acked = (SELECT range_agg(int8range(2 * i, 2 * i + 1)) FROM generate_series(1, 1000) AS i)
WHERE group_name = 'full';
BEGIN;
SELECT pg_temp.error_of(format('SELECT cursor_ack(''full'', 0, 2002, %s)', :u));
SELECT cursor_ack('full', 0, 2001, :u), cursor_ack('full', 0, 2000, :u), cursor_ack('full', 0, 1, :u);
SELECT cursor_ack('full', 0, 2010, :u);
SELECT position, acked_ahead FROM group_lag WHERE group_name = 'full';
SELECT cursor_commit('full', 0, 3000, :u);
SELECT position, acked_ahead FROM group_lag WHERE group_name = 'full';
ROLLBACK;
SELECT cursor_position('full', 0);

SELECT session_close(:'a');
SELECT group_drop(name) FROM unnest(ARRAY['g', 'acks', 'full']) AS name;
SELECT semaphore_drop('sem');
SELECT session_close(session) FROM sessions;
SELECT count(*) FROM eskit_lease._cursors;
SELECT count(*) FROM eskit_lease._heads;
SELECT count(*) FROM leases WHERE resource IN ('g', 'acks', 'full', 'sem');
\i pg_test/sql/include/worker_on.psql
