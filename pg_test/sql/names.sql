-- The former names of functions do what today's names do, and each warns once in a connection. Then drops of what does
-- not exist.
\i pg_test/sql/include/helpers.psql
CREATE TEMP TABLE written (position bigint DEFAULT eskit_lease.next_position());
CREATE TABLE fenced (i int);
SELECT group_create('g', 1);
INSERT INTO written SELECT;
INSERT INTO written SELECT FROM generate_series(1, 3);
SELECT count(DISTINCT position), min(position) > 0 AS positive FROM written;
SELECT cursor_head('g', 0, 5), cursor_head('g', 0, 4) AS older;
SELECT fence_table('fenced', 'r'), fence_table('fenced', 'r') AS again;
SELECT unfence_table('fenced'), unfence_table('fenced') AS again;
DO $$ BEGIN PERFORM eskit_lease.cursor_head('g', 0, n), eskit_lease.next_position() FROM generate_series(6, 9) AS n; END $$;
SELECT head FROM group_lag WHERE group_name = 'g';
-- Another connection is warned again.
\c
\i pg_test/sql/include/helpers.psql
SELECT next_position() > 0 AS positive;
SELECT next_position() > 0 AS positive, position_next() > 0 AS today;
SELECT pg_temp.error_of(statement)
FROM unnest(ARRAY['SELECT cursor_head(NULL, 0, 1)', 'SELECT cursor_head(''none'', 0, 1)', 'SELECT fence_table(NULL, ''r'')', 'SELECT unfence_table(NULL)']) AS statement;
BEGIN READ ONLY;
SELECT pg_temp.error_of('SELECT next_position()');
COMMIT;

-- A drop of what does not exist raises 42704, or answers false.
CREATE TEMP TABLE calls AS
SELECT call FROM unnest(ARRAY['semaphore_drop(''none''', 'group_drop(''none''', 'queue_drop(''none''', 'bridge_drop(''none''', 'table_unfence(''fenced''']) AS call;
SELECT call, pg_temp.error_of(format('SELECT %s)', call)) FROM calls;
SELECT call, pg_temp.error_of(format('SELECT %s, missing_ok => NULL)', call)) FROM calls;
SELECT semaphore_drop('none', missing_ok => true), group_drop('none', missing_ok => true), queue_drop('none', missing_ok => true),
       bridge_drop('none', missing_ok => true), table_unfence('fenced', missing_ok => true);
-- What exists is dropped. What is of another kind, in use or another role's is not.
SELECT semaphore_create('s', 1), queue_create('q'), bridge_create('b', 7), table_fence('fenced', 'r');
SELECT pg_temp.error_of(statement)
FROM unnest(ARRAY['SELECT semaphore_drop(''g'', true)', 'SELECT group_drop(''s'', true)', 'SELECT bridge_drop(''s'', true)', 'SELECT queue_drop(NULL, true, true)',
                  'SELECT table_unfence(NULL, true)', 'SELECT table_unfence(''4294967295'', true)']) AS statement;
SELECT item_add('q', '1') > 0 AS added;
SELECT pg_temp.error_of('SELECT queue_drop(''q'', missing_ok => true)');
SELECT semaphore_drop('s', true), group_drop('g', true), queue_drop('q', true, true), bridge_drop('b', true), table_unfence('fenced', true);
CREATE ROLE regress_names;
SELECT grant_consumer('regress_names'), grant_monitor('regress_names'), semaphore_create('s', 1), queue_create('q'), group_create('g', 1);
SET ROLE regress_names;
SELECT pg_temp.error_of(statement)
FROM unnest(ARRAY['SELECT semaphore_drop(''s'', true)', 'SELECT group_drop(''g'', true)', 'SELECT queue_drop(''q'', true, true)', 'SELECT bridge_drop(''b'', true)',
                  'SELECT table_unfence(''fenced'', true)']) AS statement;
RESET ROLE;
SELECT semaphore_drop('s'), group_drop('g'), queue_drop('q');
DROP TABLE fenced;
DROP OWNED BY regress_names;
DROP ROLE regress_names;
