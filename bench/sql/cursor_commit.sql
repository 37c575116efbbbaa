-- The partition of this connection is read once; what follows is measured.
\if not :ready
SELECT a.partition, a.fence, eskit_lease.cursor_position('bench/cursors', a.partition) AS position
FROM clients AS c, eskit_lease.group_assignment('bench/cursors', c.session) AS a WHERE c.n = :client_id \gset
\set ready true
\endif
\set position :position + 1
BEGIN;
WITH written AS (INSERT INTO work (client, payload) VALUES (:client_id, 'what a projection writes for one event'))
SELECT eskit_lease.cursor_commit('bench/cursors', :partition, :position, :fence);
COMMIT;
