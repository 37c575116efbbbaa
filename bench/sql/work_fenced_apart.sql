\if not :ready
SELECT l.fence FROM clients AS c, eskit_lease.lease_acquire('bench/own/' || :client_id, c.session) AS l WHERE c.n = :client_id \gset
\set ready true
\endif
BEGIN;
SELECT eskit_lease.fence_check('bench/own/' || :client_id, :fence);
INSERT INTO work (client, payload) VALUES (:client_id, 'what a projection writes for one event');
COMMIT;
