-- An administrator has put a null where the schema says NOT NULL: callers are told the table and the column. The worker is off.
\i pg_test/sql/include/worker_off.psql
SELECT session AS a FROM session_open('a', '1 hour') \gset
SELECT group_create('g', 1);
SELECT group_join('g', :'a') > 0 AS joined;
SELECT fence AS f FROM group_assignment('g', :'a') \gset

-- A row that is read by its address.
SELECT fence AS l FROM lease_acquire('r', :'a') \gset
ALTER TABLE eskit_lease._leases ALTER COLUMN fence DROP NOT NULL;
UPDATE eskit_lease._leases SET fence = NULL WHERE resource = 'r';
SELECT pg_temp.error_of(format('SELECT eskit_lease.lease_acquire(''r'', %L)', :'a'));
UPDATE eskit_lease._leases SET fence = :l WHERE resource = 'r';
ALTER TABLE eskit_lease._leases ALTER COLUMN fence SET NOT NULL;
SELECT lease_release('r', :l);
SELECT cursor_ack('g', 0, 1, :f);
ALTER TABLE eskit_lease._cursors ALTER COLUMN acked DROP NOT NULL;
UPDATE eskit_lease._cursors SET acked = NULL;
SELECT pg_temp.error_of(format('SELECT eskit_lease.cursor_ack(''g'', 0, 2, %s)', :f));
UPDATE eskit_lease._cursors SET acked = '{}';
ALTER TABLE eskit_lease._cursors ALTER COLUMN acked SET NOT NULL;
SELECT cursor_ack('g', 0, 2, :f);

-- The row of a session, the place of a waiter, and what a name is declared as.
ALTER TABLE eskit_lease._sessions ALTER COLUMN ttl_ms DROP NOT NULL;
UPDATE eskit_lease._sessions SET ttl_ms = NULL WHERE session = :'a';
SELECT pg_temp.error_of(format('SELECT eskit_lease.lease_acquire(''s'', %L)', :'a'));
UPDATE eskit_lease._sessions SET ttl_ms = 3600000 WHERE session = :'a';
ALTER TABLE eskit_lease._sessions ALTER COLUMN ttl_ms SET NOT NULL;
SELECT session AS b FROM session_open('b', '1 hour') \gset
SELECT fence AS l FROM lease_acquire('r', :'a') \gset
SELECT reason FROM lease_acquire('r', :'b', queue => true);
ALTER TABLE eskit_lease._waiters ALTER COLUMN session DROP NOT NULL;
UPDATE eskit_lease._waiters SET session = NULL;
SELECT pg_temp.error_of(format('SELECT eskit_lease.lease_release(''r'', %s)', :l));
UPDATE eskit_lease._waiters SET session = :'b';
ALTER TABLE eskit_lease._waiters ALTER COLUMN session SET NOT NULL;
SELECT lease_release('r', :l);
SELECT reason FROM lease_acquire('r', :'b');
SELECT semaphore_create('s', 2);
ALTER TABLE eskit_lease._declarations ALTER COLUMN slots DROP NOT NULL;
UPDATE eskit_lease._declarations SET slots = NULL WHERE resource = 's';
SELECT pg_temp.error_of(format('SELECT eskit_lease.lease_acquire(''s'', %L)', :'a'));
UPDATE eskit_lease._declarations SET slots = 2, kind = 'tree' WHERE resource = 's';
ALTER TABLE eskit_lease._declarations ALTER COLUMN slots SET NOT NULL;
SELECT regexp_replace(pg_temp.error_of(format('SELECT eskit_lease.lease_acquire(''s'', %L)', :'a')), 'version [0-9.]+[0-9]', 'version VERSION') AS error;
UPDATE eskit_lease._declarations SET kind = 'semaphore' WHERE resource = 's';
SELECT reason FROM lease_acquire('s', :'a');

-- A run-once key, and an item.
SELECT fence AS e FROM execution_begin('e', :'a') \gset
ALTER TABLE eskit_lease._executions ALTER COLUMN role DROP NOT NULL;
UPDATE eskit_lease._executions SET role = NULL;
SELECT pg_temp.error_of(format('SELECT eskit_lease.execution_begin(''e'', %L)', :'a'));
UPDATE eskit_lease._executions SET role = current_user;
ALTER TABLE eskit_lease._executions ALTER COLUMN role SET NOT NULL;
SELECT execution_finish('e', :e);
SELECT queue_create('q');
SELECT item_add('q', '1') > 0 AS added;
ALTER TABLE eskit_lease._items ALTER COLUMN claim DROP NOT NULL;
UPDATE eskit_lease._items SET claim = NULL;
SELECT pg_temp.error_of(format('SELECT eskit_lease.item_claim(''q'', %L)', :'a'));
UPDATE eskit_lease._items SET claim = 0;
ALTER TABLE eskit_lease._items ALTER COLUMN claim SET NOT NULL;

-- A column has a word that no function writes.
UPDATE eskit_lease._groups SET assignor = 'random';
SELECT pg_temp.error_of(format('SELECT eskit_lease.group_assignment(''g'', %L)', :'a'));
UPDATE eskit_lease._groups SET assignor = 'sticky';
UPDATE eskit_lease._executions SET state = 'paused';
SELECT pg_temp.error_of(format('SELECT eskit_lease.execution_begin(''e'', %L)', :'a'));
UPDATE eskit_lease._executions SET state = 'done';
UPDATE eskit_lease._queues SET ordering = 'lifo';
SELECT pg_temp.error_of(format('SELECT eskit_lease.item_claim(''q'', %L)', :'a'));
UPDATE eskit_lease._queues SET ordering = 'none';
UPDATE eskit_lease._declarations SET slots = -1 WHERE resource = 'g';
SELECT pg_temp.error_of(format('SELECT eskit_lease.group_assignment(''g'', %L)', :'a'));
UPDATE eskit_lease._declarations SET slots = 1 WHERE resource = 'g';
SELECT attempt FROM item_claim('q', :'a');

SELECT session_close(:'a');
SELECT session_close(:'b');
SELECT semaphore_drop('s');
DELETE FROM eskit_lease._executions;
DELETE FROM eskit_lease._items;
SELECT queue_drop('q');
SELECT group_drop('g');
\i pg_test/sql/include/worker_on.psql
