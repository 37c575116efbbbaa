-- This connection's partition is read once; the measurement follows.
\if not :ready
SELECT a.partition, a.fence, eskit_lease.cursor_position('bench/acks', a.partition) AS position
FROM clients AS c, eskit_lease.group_assignment('bench/acks', c.session) AS a WHERE c.n = :client_id \gset
\set ready true
\endif
\set position :position + 1
BEGIN;
INSERT INTO work (client, payload) VALUES (:client_id, 'what a projection writes for one event');
SELECT eskit_lease.cursor_ack('bench/acks', :partition, :position, :fence);
COMMIT;
