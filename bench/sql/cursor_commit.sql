\i include/partition.sql
\set position :position + 1
BEGIN;
WITH written AS (INSERT INTO work (client, payload) VALUES (:client_id, 'what a projection writes for one event'))
SELECT eskit_lease.cursor_commit('bench/cursors', :partition, :position, :fence);
COMMIT;
