-- Consumer groups: which member owns which partition, and how partitions move. The worker is off at first, so that what
-- is seen is the verbs' own doing.
\i pg_test/sql/include/worker_off.psql
\i pg_test/sql/include/groups.psql
\pset null -

SELECT session AS a FROM session_open('a', '1 hour') \gset
SELECT session AS b FROM session_open('b', '1 hour') \gset
SELECT session AS c FROM session_open('c', '1 hour') \gset
SELECT session AS d FROM session_open('d', '1 hour') \gset

SELECT group_create('g', 8);
SELECT group_name, partitions, assignor, rebalance_timeout, settle_delay, generation, members, resize_to, owner = current_user AS mine
FROM groups;
SELECT * FROM pg_temp.who('g');
SELECT group_name, partition, state, owner, session, fence, granted_at, target, revoke_in FROM group_partitions WHERE partition < 2;

-- The first member gets all partitions at once, and its revision grows.
SELECT revision AS r FROM session_heartbeat(:'a') \gset
SELECT group_join('g', :'a') AS generation;
SELECT revision > :r AS told FROM session_heartbeat(:'a');
SELECT partition, fence > 1::bigint << 40 AS fenced, state, revoke_in FROM group_assignment('g', :'a') ORDER BY 1;
SELECT count(DISTINCT fence) FROM group_assignment('g', :'a');
-- A repeated join changes nothing.
SELECT revision AS r, pg_temp.generation('g') AS generation FROM session_heartbeat(:'a') \gset
SELECT group_join('g', :'a') = :generation AS same;
SELECT revision = :r AS "nothing new" FROM session_heartbeat(:'a');
SELECT group_name, consumer, session = :'a' AS mine, role = current_user AS role, state, joined_at < clock_timestamp() AS joined, partitions, targets
FROM group_members;
SELECT partition, state, owner, session = :'a' AS mine, fence > 1::bigint << 40 AS fenced, granted_at < clock_timestamp() AS granted, target, revoke_in
FROM group_partitions WHERE partition = 3;
-- A partition is a lease: its resource is the group's name, its slot the partition's number.
SELECT count(*), min(slot), max(slot), min(state), min(consumer) FROM leases WHERE resource = 'g';
SELECT consumer, leases FROM sessions WHERE consumer IN ('a', 'b', 'c', 'd') ORDER BY 1;
SELECT fence AS f FROM group_assignment('g', :'a') WHERE partition = 5 \gset
SELECT held, reason FROM lease_renew('g', :f);
SELECT fence_check('g', :f);

-- A second member joins: the first must release half of its partitions, and none is taken. The first one's revision
-- grows.
SELECT group_join('g', :'b') = :generation + 1 AS "next generation";
SELECT * FROM pg_temp.who('g');
SELECT revision > :r AS told FROM session_heartbeat(:'a');
SELECT * FROM pg_temp.mine('g', :'a');
SELECT * FROM pg_temp.mine('g', :'b');
SELECT revoke_in > '20 s' AND revoke_in <= '30 s' AS "half a minute" FROM group_assignment('g', :'a') WHERE state = 'revoking' LIMIT 1;
SELECT revoke_in > '20 s' AND revoke_in <= '30 s' AS "half a minute" FROM group_partitions WHERE state = 'revoking' LIMIT 1;
SELECT consumer, partitions, targets FROM group_members ORDER BY 1;
-- The old owner's fence is valid until it releases.
SELECT fence AS g FROM group_assignment('g', :'a') WHERE state = 'revoking' ORDER BY partition LIMIT 1 \gset
SELECT partition AS p FROM group_assignment('g', :'a') WHERE fence = :g \gset
SELECT fence_check('g', :g);
SELECT revision AS rb FROM session_heartbeat(:'b') \gset
BEGIN;
SELECT group_release('g', :p, :g);
SELECT revision = :rb AS "not yet" FROM session_heartbeat(:'b');
COMMIT;
SELECT revision > :rb AS told FROM session_heartbeat(:'b');
SELECT partition = :p AS same, fence > :g AS greater, state FROM group_assignment('g', :'b');
SELECT pg_temp.error_of(format('SELECT fence_check(''g'', %s)', :g));
SELECT held, reason FROM lease_renew('g', :g);
SELECT group_release('g', :p, :g) AS again, group_release('g', :p, :g + 1000000) AS "never given", group_release('g', 0, :g) AS "other partition";
-- A release that is rolled back changes nothing.
BEGIN;
SELECT pg_temp.acknowledge('g', :'a');
SELECT * FROM pg_temp.who('g');
ROLLBACK;
SELECT * FROM pg_temp.who('g');
SELECT pg_temp.acknowledge('g', :'a');
SELECT * FROM pg_temp.who('g');
SELECT pg_temp.generation('g') = :generation + 1 AS "same generation";

-- The new member leaves before the owner has released: the owner keeps its partitions, and its revision grows.
SELECT group_join('g', :'c') = :generation + 2 AS "next generation";
SELECT * FROM pg_temp.who('g');
SELECT revision AS r FROM session_heartbeat(:'a') \gset
SELECT revision AS rb FROM session_heartbeat(:'b') \gset
SELECT group_leave('g', :'c');
SELECT group_leave('g', :'c') AS again, group_leave('g', '00000000-0000-4000-8000-000000000000') AS unknown;
SELECT * FROM pg_temp.who('g');
SELECT a.revision > :r AND b.revision > :rb AS told FROM session_heartbeat(:'a') AS a, session_heartbeat(:'b') AS b;
SELECT pg_temp.generation('g') = :generation + 3 AS "next generation";

-- As few partitions move as possible: a member that leaves or comes moves its own share and no more.
SELECT group_join('g', :'c') > 0 AS joined, group_join('g', :'d') > 0 AS joined;
SELECT pg_temp.acknowledge('g', :'a') + pg_temp.acknowledge('g', :'b');
SELECT * FROM pg_temp.who('g');
SELECT group_leave('g', :'b');
SELECT * FROM pg_temp.who('g');
SELECT pg_temp.generation('g') AS generation \gset
SELECT group_join('g', :'b') > 0 AS joined;
SELECT * FROM pg_temp.who('g');
-- A member leaves while it is the target of some partitions and the owner of others.
BEGIN;
SELECT session_close(:'b');
SELECT * FROM pg_temp.who('g');
ROLLBACK;
SELECT pg_temp.acknowledge('g', :'a') + pg_temp.acknowledge('g', :'c') + pg_temp.acknowledge('g', :'d');
SELECT * FROM pg_temp.who('g');
SELECT consumer, partitions, targets FROM group_members ORDER BY 1;

-- A released partition that was not being revoked goes back to its owner, under a new fence.
SELECT partition AS p, fence AS f, pg_temp.generation('g') AS generation FROM group_assignment('g', :'a') ORDER BY 1 LIMIT 1 \gset
SELECT group_release('g', :p, :f);
SELECT state, fence > :f AS greater FROM group_assignment('g', :'a') WHERE partition = :p;
SELECT pg_temp.generation('g') = :generation AS "same generation";
-- A partition released by lease_release goes back too.
SELECT fence AS f FROM group_assignment('g', :'a') WHERE partition = :p \gset
SELECT lease_release('g', :f);
SELECT * FROM lease_release_many('{g}', :'a');
SELECT lease_force_release('g', fence, 'test') FROM group_assignment('g', :'a') WHERE partition = :p;
SELECT state, fence > :f AS greater FROM group_assignment('g', :'a') WHERE partition = :p;
SELECT * FROM pg_temp.who('g');
SELECT pg_temp.generation('g') = :generation AS "same generation";

-- A closed session's partitions move with the transaction that closes it, at its commit.
BEGIN;
SELECT session_close(:'d');
SELECT * FROM pg_temp.who('g');
ROLLBACK;
SELECT * FROM pg_temp.who('g');
SELECT session_close(:'d');
SELECT * FROM pg_temp.who('g');
SELECT consumer, state FROM group_members ORDER BY 1;
SELECT pg_temp.generation('g') > :generation AS "next generation";

-- A join and a leave that are rolled back, also to a savepoint.
SELECT pg_temp.generation('g') AS generation \gset
SELECT session AS d FROM session_open('d', '1 hour') \gset
BEGIN;
SAVEPOINT s;
SELECT group_join('g', :'d') > :generation AS "joined, and rebalanced";
SELECT * FROM pg_temp.who('g');
ROLLBACK TO s;
SELECT * FROM pg_temp.who('g');
SELECT group_leave('g', :'a');
SELECT * FROM pg_temp.who('g');
ROLLBACK;
SELECT * FROM pg_temp.who('g');
SELECT pg_temp.generation('g') = :generation AS "same generation";
-- Under other isolation levels.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT group_join('g', :'d') > :generation AS "joined, and rebalanced";
COMMIT;
SELECT pg_temp.generation('g') > :generation AS "next generation";
SELECT pg_temp.acknowledge('g', :'a') + pg_temp.acknowledge('g', :'b') + pg_temp.acknowledge('g', :'c');
SELECT * FROM pg_temp.mine('g', :'d');
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT group_leave('g', :'d');
SELECT * FROM pg_temp.who('g');
COMMIT;
SELECT * FROM pg_temp.who('g');
-- A read-only transaction may read its assignment.
BEGIN READ ONLY;
SELECT * FROM pg_temp.mine('g', :'a');
COMMIT;

-- More members than partitions: the surplus members own nothing until another member leaves.
SELECT group_create('two', 2);
SELECT group_join('two', session) > 0 AS joined FROM unnest(ARRAY[:'a', :'b', :'c']::uuid[]) AS session;
SELECT pg_temp.acknowledge('two', :'a');
SELECT * FROM pg_temp.who('two');
SELECT * FROM pg_temp.mine('two', :'c');
SELECT group_leave('two', :'a');
SELECT * FROM pg_temp.who('two');
-- A session may be in many groups.
SELECT group_name, consumer, partitions FROM group_members WHERE consumer = 'b' ORDER BY 1;

-- range: neighbouring partitions stay together, members are ranked by name.
SELECT group_create('r', 8, 'range', '1 minute', '0');
SELECT group_join('r', :'a') > 0 AS joined, group_join('r', :'c') > 0 AS joined;
SELECT pg_temp.acknowledge('r', :'a');
SELECT * FROM pg_temp.who('r');
SELECT group_join('r', :'b') > 0 AS joined;
SELECT * FROM pg_temp.who('r');
SELECT pg_temp.acknowledge('r', :'a') + pg_temp.acknowledge('r', :'c');
SELECT * FROM pg_temp.who('r');
SELECT session AS e FROM session_open('e', '1 hour') \gset
SELECT group_join('r', :'d') > 0 AS joined, group_join('r', :'e') > 0 AS joined;
SELECT pg_temp.acknowledge('r', session) >= 0 AS done FROM unnest(ARRAY[:'a', :'b', :'c', :'d']::uuid[]) AS session;
SELECT * FROM pg_temp.who('r');
-- Two sessions of one name are two members.
SELECT session AS a2 FROM session_open('a', '1 hour') \gset
SELECT group_leave('r', session) FROM unnest(ARRAY[:'b', :'c', :'d', :'e']::uuid[]) AS session;
SELECT group_join('r', :'a2') > 0 AS joined;
SELECT pg_temp.acknowledge('r', :'a');
SELECT count(DISTINCT session) AS owners, string_agg(DISTINCT owner, ',') FROM group_partitions WHERE group_name = 'r' AND state = 'owned';
SELECT session_close(:'a2');

-- group_alter: a new assignor gives a new assignment, a new rebalance timeout applies from the next revocation on.
SELECT group_join('r', :'b') > 0 AS joined;
SELECT pg_temp.acknowledge('r', :'a');
SELECT pg_temp.generation('r') AS generation \gset
SELECT group_alter('r', rebalance_timeout => '2 minutes');
SELECT group_alter('r', settle_delay => '1 day');
SELECT group_alter('r', 'sticky');
SELECT assignor, rebalance_timeout, settle_delay, generation = :generation AS "same generation" FROM groups WHERE group_name = 'r';
SELECT group_alter('r', settle_delay => '0');
SELECT group_alter('r');
SELECT group_join('r', :'c') > 0 AS joined;
SELECT * FROM pg_temp.who('r');
SELECT revoke_in > '1 minute' AND revoke_in <= '2 minutes' AS "the new time" FROM group_assignment('r', :'a') WHERE state = 'revoking';
SELECT pg_temp.acknowledge('r', :'a') + pg_temp.acknowledge('r', :'b');
SELECT * FROM pg_temp.who('r');
SELECT group_alter('r', 'range');
SELECT * FROM pg_temp.who('r');
SELECT group_alter('r', 'sticky');
SELECT * FROM pg_temp.who('r');
BEGIN;
SELECT group_alter('r', 'range', '0', '0');
ROLLBACK;
SELECT assignor, rebalance_timeout, settle_delay FROM groups WHERE group_name = 'r';

-- A draining member keeps its partitions until it releases them itself, and gets no new ones.
SELECT * FROM pg_temp.who('two');
SELECT session_drain(:'b');
SELECT * FROM pg_temp.mine('two', :'b');
SELECT * FROM pg_temp.mine('two', :'c');
SELECT * FROM pg_temp.who('two');
SELECT consumer, state, partitions, targets FROM group_members WHERE group_name = 'two' ORDER BY 1;
SELECT pg_temp.acknowledge('two', :'b');
SELECT * FROM pg_temp.who('two');
SELECT consumer, state, partitions, targets FROM group_members WHERE group_name = 'two' ORDER BY 1;
SELECT group_leave('two', :'c');
SELECT * FROM pg_temp.who('two');
SELECT group_join('two', :'b') > 0 AS "is a member still";
SELECT * FROM pg_temp.mine('two', :'b');
SELECT group_leave('two', :'b');
-- A member that was to release some partitions need not once it drains.
SELECT group_create('drain', 4);
SELECT group_join('drain', :'a') > 0 AS joined, group_join('drain', :'d') > 0 AS joined;
SELECT * FROM pg_temp.who('drain');
SELECT session_drain(:'a');
SELECT * FROM pg_temp.mine('drain', :'a');
SELECT * FROM pg_temp.mine('drain', :'d');
SELECT pg_temp.acknowledge('drain', :'a');
SELECT * FROM pg_temp.who('drain');
-- The last member drains: its partitions have no target.
SELECT session_drain(:'d');
SELECT * FROM pg_temp.mine('drain', :'d');
SELECT owner, target, count(*) FROM group_partitions WHERE group_name = 'drain' GROUP BY 1, 2 ORDER BY 1;
SELECT group_release('drain', 0, fence) FROM group_assignment('drain', :'d') WHERE partition = 0;
SELECT owner, target, count(*) FROM group_partitions WHERE group_name = 'drain' GROUP BY 1, 2 ORDER BY 1;
SELECT session_close(:'a'), session_close(:'b'), session_close(:'d');
SELECT * FROM pg_temp.who('drain');
SELECT * FROM pg_temp.who('g');
SELECT * FROM pg_temp.who('r');

-- Newcomers are gathered for settle_delay, and then one rebalance serves all.
SELECT group_create('settle', 4, settle_delay => '2 s');
SELECT group_join('settle', :'c') AS "not yet", group_join('settle', :'e') AS "not yet";
SELECT * FROM pg_temp.who('settle');
SELECT consumer, partitions, targets FROM group_members WHERE group_name = 'settle' ORDER BY 1;
CALL pg_temp.wait_for(format('count(*) > 0 FROM eskit_lease.group_assignment(''settle'', %L)', :'e'));
-- Without the worker each member gets its partitions when it asks for its assignment.
SELECT * FROM pg_temp.who('settle');
SELECT * FROM pg_temp.mine('settle', :'c');
SELECT * FROM pg_temp.who('settle');
SELECT pg_temp.generation('settle') AS "one rebalance";
-- Members that die or leave cause a rebalance without a delay.
SELECT session AS f FROM session_open('f', '1 hour') \gset
SELECT group_alter('settle', settle_delay => '1 day');
SELECT group_join('settle', :'f') AS "not yet";
SELECT * FROM pg_temp.who('settle');
SELECT group_leave('settle', :'c');
SELECT * FROM pg_temp.who('settle');
SELECT group_leave('settle', session) FROM unnest(ARRAY[:'e', :'f']::uuid[]) AS session;

-- A rebalance_timeout of 0: the partitions that must move do so at once, and no others.
SELECT group_create('now', 4, rebalance_timeout => '0');
SELECT group_join('now', :'c') > 0 AS joined;
SELECT fence AS kept FROM group_assignment('now', :'c') WHERE partition = 0 \gset
SELECT fence AS lost FROM group_assignment('now', :'c') WHERE partition = 3 \gset
SELECT revision AS r FROM session_heartbeat(:'c') \gset
SELECT group_join('now', :'e') > 0 AS joined;
SELECT * FROM pg_temp.who('now');
SELECT revision > :r AS told FROM session_heartbeat(:'c');
SELECT partition, fence = :kept AS same FROM group_assignment('now', :'c') WHERE partition = 0;
SELECT pg_temp.error_of(format('SELECT fence_check(''now'', %s)', :lost));
SELECT group_release('now', 3, :lost);

-- A member that asks for its assignment gets the partitions of dead members.
SELECT group_create('dead', 4);
SELECT session AS s FROM session_open('short', '1 s') \gset
SELECT group_join('dead', :'s') > 0 AS joined;
SELECT fence AS f0 FROM group_partitions WHERE group_name = 'dead' AND partition = 0 \gset
CALL pg_temp.wait_for('bool_and(state = ''expired'') FROM eskit_lease.group_partitions WHERE group_name = ''dead''');
SELECT * FROM pg_temp.who('dead');
SELECT members FROM groups WHERE group_name = 'dead';
SELECT consumer, state, partitions, targets FROM group_members WHERE group_name = 'dead';
SELECT pg_temp.error_of(format('SELECT * FROM group_assignment(''dead'', %L)', :'s'));
SELECT pg_temp.error_of(format('SELECT * FROM group_join(''dead'', %L)', :'s'));
SELECT group_leave('dead', :'s');
SELECT group_join('dead', :'c') AS generation;
SELECT * FROM pg_temp.who('dead');
SELECT fence > :f0 AS greater FROM group_assignment('dead', :'c') WHERE partition = 0;
SELECT consumer, state, partitions, targets FROM group_members WHERE group_name = 'dead';

-- From here on with the worker: it takes partitions from members that do not release in time, and from dead ones.
\i pg_test/sql/include/worker_on.psql
\i pg_test/sql/include/groups.psql
SELECT group_create('late', 4, rebalance_timeout => '1 s');
SELECT group_join('late', :'c') > 0 AS joined;
SELECT fence AS kept FROM group_assignment('late', :'c') WHERE partition = 0 \gset
SELECT fence AS lost FROM group_assignment('late', :'c') WHERE partition = 3 \gset
SELECT group_join('late', :'e') AS generation \gset
CALL pg_temp.wait_for('bool_and(state = ''owned'') FROM eskit_lease.group_partitions WHERE group_name = ''late''');
SELECT * FROM pg_temp.who('late');
SELECT fence = :kept AS same FROM group_assignment('late', :'c') WHERE partition = 0;
SELECT fence > :lost AS greater FROM group_assignment('late', :'e') WHERE partition = 3;
SELECT held, reason FROM lease_renew('late', :lost);
SELECT pg_temp.generation('late') = :generation AS "same generation";
-- A new rebalance_timeout applies only to later revocations.
SELECT group_create('new', 4, rebalance_timeout => '1 day');
SELECT group_join('new', :'c') > 0 AS joined;
SELECT group_join('new', :'e') AS generation \gset
SELECT group_alter('new', rebalance_timeout => '0');
SELECT revoke_in > '1 hour' AS "asked before" FROM group_assignment('new', :'c') WHERE partition = 3;
SELECT session AS f FROM session_open('f', '1 hour') \gset
SELECT group_join('new', :'f') > :generation AS joined;
SELECT * FROM pg_temp.who('new');

SELECT session AS s FROM session_open('short', '1 s') \gset
SELECT group_create('died', 4);
SELECT group_join('died', :'s') > 0 AS joined;
SELECT min(fence) AS f0 FROM group_partitions WHERE group_name = 'died' \gset
SELECT group_join('died', :'e') > 0 AS joined;
CALL pg_temp.wait_for('bool_and(state = ''owned'' AND owner = ''e'') FROM eskit_lease.group_partitions WHERE group_name = ''died''');
SELECT min(fence) > :f0 AS greater FROM group_assignment('died', :'e');
CALL pg_temp.wait_for('count(*) = 1 FROM eskit_lease.group_members WHERE group_name = ''died''');
SELECT pg_temp.error_of(format('SELECT fence_check(''died'', %s)', :f0));
SELECT split_part(pg_temp.error_of(format('SELECT * FROM group_assignment(''died'', %L)', :'s')), ':', 1);
-- The last member dies: no partition has an owner or a target.
SELECT group_leave('died', :'e');
SELECT session AS s FROM session_open('short', '1 s') \gset
SELECT group_join('died', :'s') > 0 AS joined;
CALL pg_temp.wait_for('bool_and(state = ''free'' AND target IS NULL) FROM eskit_lease.group_partitions WHERE group_name = ''died''');
SELECT * FROM pg_temp.who('died');
CALL pg_temp.wait_for('count(*) = 0 FROM eskit_lease.group_members WHERE group_name = ''died''');
-- The worker also rebalances for draining members, and for newcomers after settle_delay.
SELECT group_join('died', :'e') > 0 AS joined, group_join('died', :'f') > 0 AS joined;
SELECT session_drain(:'e');
CALL pg_temp.wait_for('bool_and(target = ''f'' AND revoke_in IS NULL) FROM eskit_lease.group_partitions WHERE group_name = ''died''');
SELECT * FROM pg_temp.who('died');
SELECT group_create('settled', 2, settle_delay => '1 s');
SELECT group_join('settled', :'f') AS "not yet";
CALL pg_temp.wait_for('bool_and(owner = ''f'') FROM eskit_lease.group_partitions WHERE group_name = ''settled''');
SELECT pg_temp.generation('settled');
SELECT session_close(:'e'), session_close(:'f');

-- A group is resized at once while no partition has an owner.
\i pg_test/sql/include/worker_off.psql
\i pg_test/sql/include/refusals.psql
\i pg_test/sql/include/groups.psql
SELECT session AS e FROM session_open('e', '1 hour') \gset
SELECT session AS f FROM session_open('f', '1 hour') \gset
SELECT group_create('size', 3);
SELECT group_resize('size', 3) AS same, group_resize('size', 4), group_resize('size', 2, drain => true);
SELECT partitions, resize_to, generation FROM groups WHERE group_name = 'size';
SELECT * FROM pg_temp.who('size');
-- With owners, a resize is refused, or waits until all have released. Then every cursor begins at the lowest of their
-- positions, and heads are deleted.
SELECT group_join('size', :'c') > 0 AS joined, group_join('size', :'e') > 0 AS joined;
SELECT pg_temp.acknowledge('size', :'c');
SELECT * FROM pg_temp.who('size');
SELECT cursor_commit('size', 0, 100, fence) FROM group_assignment('size', :'c');
SELECT cursor_commit('size', 1, 70, fence), cursor_ack('size', 1, 90, fence), cursor_report_head('size', 1, 200)
FROM group_assignment('size', :'e');
SELECT partition, position, head, lag, acked_ahead FROM group_lag WHERE group_name = 'size' ORDER BY 1;
SELECT pg_temp.refused('group_resize(''size'', 5)');
SELECT partitions, resize_to FROM groups WHERE group_name = 'size';
SELECT fence AS old FROM group_assignment('size', :'e') \gset
BEGIN;
SELECT group_resize('size', 5, drain => true);
ROLLBACK;
SELECT partitions, resize_to FROM groups WHERE group_name = 'size';
SELECT revision AS r, pg_temp.generation('size') AS generation FROM session_heartbeat(:'c') \gset
SELECT group_resize('size', 5, drain => true);
SELECT partitions, resize_to, generation > :generation AS "next generation" FROM groups WHERE group_name = 'size';
SELECT revision > :r AS told FROM session_heartbeat(:'c');
SELECT * FROM pg_temp.who('size');
SELECT * FROM pg_temp.mine('size', :'c');
SELECT pg_temp.acknowledge('size', :'c');
SELECT * FROM pg_temp.who('size');
-- A newcomer gets nothing before the resize is done.
SELECT group_join('size', :'f') > 0 AS joined;
SELECT * FROM pg_temp.who('size');
SELECT pg_temp.acknowledge('size', :'e');
SELECT * FROM pg_temp.mine('size', :'e');
SELECT * FROM pg_temp.mine('size', :'c');
SELECT * FROM pg_temp.mine('size', :'f');
SELECT partitions, resize_to FROM groups WHERE group_name = 'size';
SELECT * FROM pg_temp.who('size');
SELECT partition, position, head, lag, acked_ahead FROM group_lag WHERE group_name = 'size' ORDER BY 1;
SELECT bool_and(fence > :old) AS greater, count(DISTINCT fence) FROM group_partitions WHERE group_name = 'size';
SELECT pg_temp.error_of(format('SELECT cursor_commit(''size'', 1, 1000, %s)', :old));
-- Draining members must release, too. A further call may change the number meanwhile; the present number cancels the
-- resize.
SELECT session_drain(:'f');
SELECT * FROM pg_temp.mine('size', :'f');
SELECT group_resize('size', 7, true), group_resize('size', 8, true);
SELECT partitions, resize_to FROM groups WHERE group_name = 'size';
SELECT * FROM pg_temp.mine('size', :'f');
SELECT pg_temp.refused('group_resize(''size'', 7)');
SELECT revision AS r FROM session_heartbeat(:'c') \gset
SELECT group_resize('size', 5);
SELECT revision > :r AS told FROM session_heartbeat(:'c');
SELECT partitions, resize_to FROM groups WHERE group_name = 'size';
SELECT * FROM pg_temp.who('size');
-- If one partition's cursor has not begun, all begin at the beginning. The owners leave, and the next caller finds the
-- resize done.
SELECT cursor_position('size', 4);
SELECT group_resize('size', 6, true);
SELECT group_leave('size', session) FROM unnest(ARRAY[:'c', :'e', :'f']::uuid[]) AS session;
SELECT group_resize('size', 6);
SELECT group_drop('size');
SELECT group_create('size', 2);
SELECT group_join('size', :'c') > 0 AS joined;
SELECT cursor_commit('size', 0, 100, fence) FROM group_assignment('size', :'c') WHERE partition = 0;
SELECT group_resize('size', 3, true);
SELECT pg_temp.acknowledge('size', :'c');
SELECT * FROM pg_temp.mine('size', :'c');
SELECT partition, position FROM group_lag WHERE group_name = 'size' ORDER BY 1;
-- A resize with an owner that does not release in time.
SELECT group_alter('size', rebalance_timeout => '0');
SELECT group_resize('size', 2, true);
SELECT * FROM pg_temp.mine('size', :'c');
SELECT partitions, resize_to FROM groups WHERE group_name = 'size';

-- A group can be dropped once it has no members; nothing of it remains.
SELECT pg_temp.refused('group_drop(''size'')');
SELECT group_join('two', :'c') > 0 AS joined, group_join('two', :'e') > 0 AS joined;
SELECT session AS b FROM session_open('b', '1 hour') \gset
SELECT group_join('two', :'b') > 0 AS joined;
SELECT lease_release_many('{two}', :'c') IS NOT NULL AS released;
-- A member without partitions counts as a member.
SELECT group_create('idle', 1, settle_delay => '1 day');
SELECT group_join('idle', :'b') AS "not yet";
SELECT pg_temp.refused('group_drop(''idle'')', 'group_drop(''two'')');
SELECT group_leave('idle', :'b');
BEGIN;
SELECT group_drop('idle');
SELECT count(*) FROM groups WHERE group_name = 'idle';
ROLLBACK;
SELECT count(*) FROM groups WHERE group_name = 'idle';
SELECT group_drop('idle');
SELECT session_close(:'b');
SELECT cursor_commit('size', 0, 200, fence), cursor_report_head('size', 0, 300) FROM group_assignment('size', :'c') WHERE partition = 0;
SELECT group_leave('size', :'c');
SELECT group_drop('size');
SELECT (SELECT count(*) FROM groups WHERE group_name = 'size') AS groups, (SELECT count(*) FROM group_partitions WHERE group_name = 'size') AS partitions,
       (SELECT count(*) FROM group_lag WHERE group_name = 'size') AS cursors, (SELECT count(*) FROM leases WHERE resource = 'size') AS leases;
-- After the drop the name may be a lease again, and a new group of that name begins anew.
SELECT reason FROM lease_acquire('size', :'c');
SELECT lease_release('size', fence) FROM leases WHERE resource = 'size';
SELECT group_create('size', 2);
SELECT count(*) FROM leases WHERE resource = 'size';
SELECT group_join('size', :'c') AS generation;
SELECT partition, cursor_position('size', partition) FROM group_assignment('size', :'c') ORDER BY 1;
-- A resize does not wait for dead members.
SELECT session AS s FROM session_open('short', '1 s') \gset
SELECT group_create('graves', 2);
SELECT group_join('graves', :'s') > 0 AS joined;
CALL pg_temp.wait_for('bool_and(state = ''expired'') FROM eskit_lease.group_partitions WHERE group_name = ''graves''');
SELECT group_resize('graves', 3);
SELECT * FROM pg_temp.who('graves');
SELECT group_drop('graves');
SELECT count(*) FROM group_members WHERE group_name = 'graves';

-- Refusals, which change nothing. The arguments of a group:
\pset format unaligned
\pset tuples_only on
SELECT pg_temp.refused(
    'group_create(NULL, 1)', 'group_create(''n'', NULL)', 'group_create(''n'', 1, NULL)', 'group_create(''n'', 1, ''sticky'', NULL)',
    'group_create(''n'', 1, ''sticky'', ''30 s'', NULL)', 'group_create('''', 1)', 'group_create(repeat(''x'', 256), 1)',
    'group_create(''n'', 0)', 'group_create(''n'', -1)', 'group_create(''n'', 32769)', 'group_create(''n'', 2147483647)',
    'group_create(''n'', 1, ''fair'')', 'group_create(''n'', 1, ''STICKY'')', 'group_create(''n'', 1, '''')');
SELECT pg_temp.refused(
    'group_create(''n'', 1, ''sticky'', ''-1 ms'')', 'group_create(''n'', 1, ''sticky'', ''1 day 1 ms'')',
    'group_create(''n'', 1, ''sticky'', ''178000000 years'')', 'group_create(''n'', 1, settle_delay => ''-1 ms'')',
    'group_create(''n'', 1, settle_delay => ''1 day 1 ms'')', 'group_create(''n'', 1, settle_delay => ''-178000000 years'')');
-- Infinite intervals, which PostgreSQL has from 17 on.
SELECT left(pg_temp.error_of(format('SELECT group_create(''n'', 1, %s => %L)', argument,
                                    CASE WHEN current_setting('server_version_num')::int >= 170000
                                    THEN sign || 'infinity' ELSE sign || '178000000 years' END)), 5)
FROM unnest(ARRAY['rebalance_timeout', 'settle_delay']) AS argument, unnest(ARRAY['', '-']) AS sign;
-- The largest and longest arguments that are accepted.
BEGIN;
SELECT group_create('n', 32768, 'range', '1 day', '24 hours');
SELECT partitions, assignor, rebalance_timeout, settle_delay FROM groups WHERE group_name = 'n';
ROLLBACK;
-- One name space: a name that is held, waited for or declared cannot become a group, and the other way round.
SELECT semaphore_create('sem', 1);
SELECT reason FROM lease_acquire('held', :'c');
SELECT session AS s FROM session_open('short', '1 s') \gset
SELECT reason FROM lease_acquire('waited', :'s');
SELECT reason FROM lease_acquire('waited', :'e', true);
SELECT reason FROM lock_acquire('locked', 'host', '1 hour');
CALL pg_temp.wait_for('state = ''expired'' FROM eskit_lease.leases WHERE resource = ''waited''');
SELECT pg_temp.refused(
    'group_create(''held'', 1)', 'group_create(''waited'', 1)', 'group_create(''locked'', 1)', 'group_create(''size'', 1)',
    'group_create(''sem'', 1)', 'semaphore_create(''size'', 1)');
SELECT pg_temp.refused(
    format('lease_acquire(''size'', %L)', :'c'), format('lease_acquire(''size'', %L)', :'e'), format('lease_acquire(''size'', %L, true)', :'e'),
    format('lease_acquire_many(''{held,size}'', %L)', :'c'), 'lock_acquire(''size'', ''host'', ''30 s'')',
    format('lease_release(''size'', %s, ''1 s'')', fence))
FROM leases WHERE resource = 'size' AND slot = 1;
-- Unknown groups and partitions, and NULLs.
SELECT fence AS f FROM leases WHERE resource = 'size' AND slot = 1 \gset
SELECT pg_temp.refused(
    'group_alter(''none'')', 'group_resize(''none'', 1)', 'group_drop(''none'')', format('group_join(''none'', %L)', :'c'),
    format('group_leave(''none'', %L)', :'c'), format('group_assignment(''none'', %L)', :'c'), format('group_release(''none'', 0, %s)', :f));
SELECT pg_temp.refused(
    'group_alter(''sem'')', 'group_resize(''sem'', 1)', 'group_drop(''sem'')', format('group_join(''sem'', %L)', :'c'),
    format('group_leave(''sem'', %L)', :'c'), format('group_assignment(''sem'', %L)', :'c'), format('group_release(''sem'', 0, %s)', :f),
    'group_alter(''held'')');
SELECT pg_temp.refused(
    format('group_release(''size'', -1, %s)', :f), format('group_release(''size'', 2, %s)', :f),
    'group_alter(NULL)', 'group_alter(''size'', ''fair'')', 'group_alter(''size'', rebalance_timeout => ''-1 ms'')',
    'group_alter(''size'', settle_delay => ''1 day 1 ms'')', 'group_resize(NULL, 1)', 'group_resize(''size'', NULL)',
    'group_resize(''size'', 1, NULL)', 'group_resize(''size'', 0)', 'group_resize(''size'', 32769)', 'group_resize(''size'', 32769, true)',
    'group_drop(NULL)', format('group_join(NULL, %L)', :'c'), 'group_join(''size'', NULL)', format('group_leave(NULL, %L)', :'c'),
    'group_leave(''size'', NULL)', format('group_assignment(NULL, %L)', :'c'), 'group_assignment(''size'', NULL)',
    format('group_release(NULL, 0, %s)', :f), format('group_release(''size'', NULL, %s)', :f), 'group_release(''size'', 0, NULL)');
-- Sessions that have ended, do not exist, drain, or are no members.
SELECT session_close(:'e');
SELECT session AS d FROM session_open('d', '1 hour') \gset
SELECT session_drain(:'d');
SELECT pg_temp.refused(
    'group_join(''size'', ''00000000-0000-4000-8000-000000000000'')', 'group_assignment(''size'', ''00000000-0000-4000-8000-000000000000'')',
    format('group_join(''size'', %L)', :'s'), format('group_assignment(''size'', %L)', :'s'),
    format('group_join(''size'', %L)', :'d'), format('group_assignment(''size'', %L)', :'d'),
    format('group_leave(''size'', %L)', :'d'), format('group_leave(''size'', %L)', :'s'));
SELECT split_part(pg_temp.error_of(format('SELECT * FROM %s(''size'', %L)', verb, :'e')), ':', 1)
FROM unnest(ARRAY['group_join', 'group_assignment']) AS verb;
-- Read-only transactions.
BEGIN READ ONLY;
SELECT pg_temp.refused(
    'group_create(''n'', 1)', 'group_alter(''size'')', 'group_resize(''size'', 2)', 'group_drop(''size'')', format('group_join(''size'', %L)', :'c'),
    format('group_leave(''size'', %L)', :'c'), format('group_release(''size'', 0, %s)', :f));
COMMIT;
-- Another role's session or group.
CREATE ROLE regress_group_owner;
CREATE ROLE regress_group_friend;
SELECT grant_consumer('regress_group_owner'), grant_consumer('regress_group_friend'), grant_monitor('regress_group_friend');
SET ROLE regress_group_owner;
SELECT eskit_lease.group_create('theirs', 2);
SELECT session AS o FROM eskit_lease.session_open('o', '1 hour') \gset
SELECT eskit_lease.group_join('theirs', :'o') AS generation, eskit_lease.group_join('size', :'o') > 0 AS joined;
SELECT pg_temp.error_of(format(statement, :'c', :f))
FROM unnest(ARRAY[
    'SELECT eskit_lease.group_join(''theirs'', %1$L)', 'SELECT eskit_lease.group_leave(''size'', %1$L)',
    'SELECT * FROM eskit_lease.group_assignment(''size'', %1$L)', 'SELECT eskit_lease.group_release(''size'', 1, %2$s)',
    'SELECT eskit_lease.group_alter(''size'', ''range'')', 'SELECT eskit_lease.group_resize(''size'', 3)', 'SELECT eskit_lease.group_drop(''size'')',
    'SELECT eskit_lease.cursor_commit(''size'', 1, 1, %2$s)', 'SELECT eskit_lease.cursor_ack(''size'', 1, 1, %2$s)']) AS statement;
SET ROLE regress_group_friend;
SELECT pg_temp.error_of(statement)
FROM unnest(ARRAY['SELECT eskit_lease.group_alter(''theirs'', ''range'')', 'SELECT eskit_lease.group_resize(''theirs'', 3, true)',
                  'SELECT eskit_lease.group_drop(''theirs'')']) AS statement;
SELECT group_name, owner FROM eskit_lease.groups WHERE group_name = 'theirs';
SELECT group_name, consumer, role, session FROM eskit_lease.group_members WHERE group_name = 'theirs';
SELECT partition, owner, session, fence > 0 AS fenced FROM eskit_lease.group_partitions WHERE group_name = 'theirs';
RESET ROLE;
GRANT regress_group_owner TO regress_group_friend;
SET ROLE regress_group_friend;
SELECT eskit_lease.group_alter('theirs', 'range');
SELECT eskit_lease.group_leave('theirs', :'o');
RESET ROLE;
SELECT group_drop('theirs');
SELECT session_close(session) FROM sessions ORDER BY consumer, opened_at;
SELECT group_drop(group_name) FROM groups ORDER BY group_name;
SELECT semaphore_drop('sem');
SELECT lease_release(resource, fence) FROM leases WHERE state = 'held' ORDER BY resource;
DROP OWNED BY regress_group_owner, regress_group_friend;
DROP ROLE regress_group_owner, regress_group_friend;
SELECT (SELECT count(*) FROM eskit_lease._declarations) AS declarations, (SELECT count(*) FROM eskit_lease._members) AS members,
       (SELECT count(*) FROM eskit_lease._partitions) AS partitions, (SELECT count(*) FROM eskit_lease._cursors) AS cursors,
       (SELECT count(*) FROM eskit_lease._heads) AS heads;
\i pg_test/sql/include/worker_on.psql
