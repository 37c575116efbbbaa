-- Positions: how they are drawn, and the horizon as one connection sees it. Concurrent transactions are in
-- specs/position.spec. Others may write at any time (autovacuum does): the test waits until its positions are below the
-- horizon.
\i pg_test/sql/include/worker_off.psql
\i pg_test/sql/include/refusals.psql
\pset null -
CREATE TABLE events (position bigint PRIMARY KEY DEFAULT position_next(), what text);
CREATE TABLE others (position bigint PRIMARY KEY DEFAULT position_next(), what text);
-- How many rows a reader may read.
CREATE FUNCTION pg_temp.settled() RETURNS bigint LANGUAGE sql AS 'SELECT count(*) FROM events WHERE position < position_horizon()';

-- A position is the id of the transaction and a count within it; the base is 0 in a new cluster.
BEGIN;
INSERT INTO events (what) VALUES ('a'), ('b');
INSERT INTO others (what) VALUES ('another table');
COPY events (what) FROM stdin;
c
\.
SELECT what, position >> 20 = pg_current_xact_id()::text::bigint AS mine, position & 1048575 AS count
FROM (TABLE events UNION ALL TABLE others) AS e ORDER BY position;
-- The rows of an open transaction are not settled, even for itself.
SELECT pg_temp.settled();
COMMIT;
CALL pg_temp.wait_for('pg_temp.settled() = 3');

-- In savepoints too the top-level transaction's id counts; a rollback leaves a gap.
BEGIN;
INSERT INTO events (what) VALUES ('d');
SAVEPOINT s;
INSERT INTO events (what) VALUES ('rolled back');
SAVEPOINT t;
INSERT INTO events (what) VALUES ('rolled back');
ROLLBACK TO s;
INSERT INTO events (what) VALUES ('e');
RELEASE s;
INSERT INTO events (what) VALUES ('f');
SELECT what, position >> 20 = pg_current_xact_id()::text::bigint AS mine, position & 1048575 AS count FROM events WHERE what >= 'd' ORDER BY position;
COMMIT;
-- The first draw is in a savepoint.
BEGIN;
SAVEPOINT s;
INSERT INTO events (what) VALUES ('g');
RELEASE s;
INSERT INTO events (what) VALUES ('h');
COMMIT;
SELECT what, position & 1048575 AS count FROM events WHERE what >= 'g' ORDER BY position;
BEGIN;
INSERT INTO events (what) VALUES ('rolled back');
ROLLBACK;
INSERT INTO events (what) VALUES ('i');
CALL pg_temp.wait_for('pg_temp.settled() = 9');
SELECT string_agg(what, ' ' ORDER BY position) FROM events WHERE position > 0 AND position < position_horizon();

-- Read in batches of two by a cursor of one bigint.
WITH RECURSIVE batches AS (
    SELECT 0::bigint AS last, NULL::text AS read
    UNION ALL
    SELECT n.last, n.read
    FROM batches AS b
    CROSS JOIN LATERAL (
        SELECT max(position) AS last, string_agg(what, ' ' ORDER BY position) AS read
        FROM (SELECT * FROM events AS e WHERE e.position > b.last AND e.position < position_horizon() ORDER BY e.position LIMIT 2) AS e) AS n
    WHERE n.last IS NOT NULL)
SELECT read FROM batches WHERE read IS NOT NULL;

-- A prepared transaction keeps its positions, and holds back all that come after them.
BEGIN;
INSERT INTO events (what) VALUES ('j'), ('k');
PREPARE TRANSACTION 'positions';
INSERT INTO events (what) VALUES ('l');
SELECT pg_temp.settled();
SELECT pid, prepared, database = current_database() AS here, role = current_user AS mine, since <= clock_timestamp() AS since, behind > 0 AS behind
FROM position_blockers WHERE prepared IS NOT NULL;
COMMIT PREPARED 'positions';
CALL pg_temp.wait_for('pg_temp.settled() = 12');
SELECT string_agg(what, ' ' ORDER BY position) FROM events WHERE what >= 'j' AND position < position_horizon();

-- Every isolation level; the horizon does not move within a snapshot.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT position_horizon() AS horizon \gset
INSERT INTO events (what) VALUES ('m');
SELECT position_horizon() = :horizon AS same, position >= :horizon AS beyond, pg_temp.settled() FROM events WHERE what = 'm';
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT position_horizon() AS horizon \gset
INSERT INTO events (what) VALUES ('n');
SELECT position_horizon() = :horizon AS same, position >= :horizon AS beyond, pg_temp.settled() >= 12 AS settled FROM events WHERE what = 'n';
COMMIT;

-- A drawn position serves as a cursor's position.
SELECT session AS a FROM session_open('a', '1 hour') \gset
SELECT group_create('outbox', 1);
SELECT group_join('outbox', :'a') > 0 AS joined;
SELECT fence AS f FROM group_assignment('outbox', :'a') \gset
SELECT cursor_commit('outbox', 0, max(position), :f) FROM events;
SELECT cursor_position('outbox', 0) = max(position) AS there FROM events;
SELECT session_close(:'a');
SELECT group_drop('outbox');

-- A read-only transaction cannot draw, but reads the horizon.
BEGIN READ ONLY;
SELECT pg_temp.refused('position_next()');
SELECT position_horizon() > 0 AS horizon;
COMMIT;

-- A transaction draws as many positions as it may, and one more. The next transaction begins anew.
BEGIN;
SELECT count(DISTINCT position_next()) FROM generate_series(1, 1048576);
SELECT pg_temp.refused('position_next()', 'position_next()');
COMMIT;
SELECT position_next() & 1048575 AS count;

-- A role that may not draw cannot insert rows whose default draws, but may read them.
CREATE ROLE regress_producer;
GRANT INSERT, SELECT ON events TO regress_producer;
SET ROLE regress_producer;
SELECT pg_temp.error_of('INSERT INTO events (what) VALUES (''refused'')');
RESET ROLE;
GRANT EXECUTE ON FUNCTION position_next() TO regress_producer;
SET ROLE regress_producer;
INSERT INTO events (what) VALUES ('o');
SELECT pg_temp.error_of('SELECT position_horizon()');
RESET ROLE;
SELECT count(*) FROM events WHERE what IN ('refused', 'o');

-- Positions that may have been drawn stay reserved, even after rollbacks.
SELECT last_value > max(position) >> 20 AS reserved FROM events, position_high GROUP BY last_value;
SELECT last_value FROM position_base;

-- A database restored from a dump of a cluster with greater positions: all rows from there are settled, and new
-- positions are above them.
CREATE DATABASE regress_restored;
\c regress_restored
CREATE EXTENSION eskit_lease;
\i pg_test/sql/include/helpers.psql
SELECT position_horizon() > 0 AS horizon;
SELECT setval('position_base', 17), setval('position_high', 4000000000000), setval('position_cluster', 42);
SELECT position_horizon() = 4000000000000 << 20 AS horizon;
BEGIN;
SELECT position_next() >> 20 >= 4000000000000 AS above, position_horizon() >> 20 >= 4000000000000 AS horizon;
-- A rollback undoes neither the base nor the reservation.
ROLLBACK;
SELECT last_value AS base FROM position_base \gset
SELECT position_next() >> 20 = pg_current_xact_id()::text::bigint + :base AS above_base, :base < 4000000000000 AND :base > 3999000000000 AS raised,
       position_horizon() >> 20 >= 4000000000000 AS horizon;
SELECT last_value = :base AS same FROM position_base;
SELECT last_value BETWEEN 4000000000000 AND 4000000131072 AS reserved FROM position_high;
SELECT c.last_value = system_identifier # o.last_value AS here FROM position_cluster AS c, position_origin AS o, pg_control_system();
\c regression
DROP DATABASE regress_restored WITH (FORCE);

-- A dump of a physical copy that has the same identifier and went on: its positions look like this cluster's own,
-- except that no transaction here can have reserved them.
CREATE DATABASE regress_restored;
\c regress_restored
CREATE EXTENSION eskit_lease;
\i pg_test/sql/include/helpers.psql
SELECT setval('position_high', 4000000), setval('position_cluster', system_identifier) IS NOT NULL AS same_cluster FROM pg_control_system();
SELECT position_horizon() = 4000000 << 20 AS horizon;
SELECT position_next() >> 20 >= 4000000 AS above;
\c regression
DROP DATABASE regress_restored WITH (FORCE);
CREATE DATABASE regress_restored;
\c regress_restored
CREATE EXTENSION eskit_lease;
\i pg_test/sql/include/helpers.psql
SELECT setval('position_high', 4000000000000), setval('position_cluster', system_identifier # last_value) IS NOT NULL AS here FROM position_origin, pg_control_system();
SELECT position_next() >> 20 >= 4000000000000 AS above;
\c regression
DROP DATABASE regress_restored WITH (FORCE);

-- Rows with greater positions are loaded after others have been drawn here: new positions are above them.
CREATE DATABASE regress_restored;
\c regress_restored
CREATE EXTENSION eskit_lease;
\i pg_test/sql/include/helpers.psql
\i pg_test/sql/include/refusals.psql
CREATE TABLE events (position bigint PRIMARY KEY DEFAULT position_next(), what text);
CREATE FUNCTION pg_temp.settled() RETURNS text LANGUAGE sql AS 'SELECT string_agg(what, '' '' ORDER BY position) FROM events WHERE position < position_horizon()';
INSERT INTO events (what) VALUES ('drawn');
INSERT INTO events VALUES (9000000000000, 'copied');
CALL pg_temp.wait_for($$pg_temp.settled() = 'drawn'$$);
SELECT position_raise(max(position)) FROM events;
INSERT INTO events (what) VALUES ('new');
CALL pg_temp.wait_for($$pg_temp.settled() = 'drawn copied new'$$);
SELECT position_raise(max(position)), position_raise(0) FROM events WHERE what = 'copied';
SELECT pg_temp.refused('position_raise(NULL)', 'position_raise(-1)', 'position_raise(4611686018427387904)');
BEGIN READ ONLY;
SELECT pg_temp.refused('position_raise(9000000000001)');
COMMIT;

-- A rollback does not undo the raise, and positions that its own transaction draws are above, too.
BEGIN;
INSERT INTO events (what) VALUES ('own');
SELECT position_raise(18000000000000);
INSERT INTO events (what) VALUES ('raised');
SELECT what, position > 18000000000000 AS above FROM events WHERE what IN ('own', 'raised') ORDER BY position;
ROLLBACK;
INSERT INTO events (what) VALUES ('later');
SELECT position > 18000000000000 AS above FROM events WHERE what = 'later';
CALL pg_temp.wait_for($$pg_temp.settled() = 'drawn copied new later'$$);

-- Readers wait for transactions that have drawn before the raise, as always; no transaction waits for the raise. Done
-- twice.
BEGIN;
INSERT INTO events (what) VALUES ('prepared');
PREPARE TRANSACTION 'positions';
SELECT position_raise(27000000000000);
INSERT INTO events (what) VALUES ('after');
SELECT position_raise(36000000000000);
INSERT INTO events (what) VALUES ('last');
SELECT what, position >= position_horizon() AS beyond FROM events WHERE what IN ('after', 'last') ORDER BY position;
CREATE TEMP TABLE horizon AS SELECT position_horizon() AS before;
COMMIT PREPARED 'positions';
SELECT position >= before AS unsettled FROM events, horizon WHERE what = 'prepared';
CALL pg_temp.wait_for($$pg_temp.settled() = 'drawn copied new later prepared after last'$$);
DROP TABLE horizon;

-- The extension is dropped and created again.
DROP EXTENSION eskit_lease CASCADE;
CREATE EXTENSION eskit_lease;
\c -
\i pg_test/sql/include/helpers.psql
SELECT position_next() < max(position) AS low FROM events;
SELECT position_raise(max(position)) FROM events;
ALTER TABLE events ALTER position SET DEFAULT position_next();
INSERT INTO events (what) VALUES ('above');
SELECT what FROM events ORDER BY position DESC LIMIT 2;
\c regression
DROP DATABASE regress_restored WITH (FORCE);

\i pg_test/sql/include/helpers.psql
REVOKE EXECUTE ON FUNCTION position_next() FROM regress_producer;
DROP TABLE events, others;
DROP ROLE regress_producer;
\i pg_test/sql/include/worker_on.psql
