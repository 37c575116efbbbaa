-- An administrator has put a null where the schema says NOT NULL: callers are told the table and the column. The worker is off.
\i pg_test/sql/include/worker_off.psql
SELECT session AS a FROM session_open('a', '1 hour') \gset
SELECT group_create('g', 1);
SELECT group_join('g', :'a') > 0 AS joined;
SELECT fence AS f FROM group_assignment('g', :'a') \gset

-- A row that is read by its place.
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

SELECT session_close(:'a');
SELECT group_drop('g');
