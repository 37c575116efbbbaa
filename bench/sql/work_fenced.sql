\if not :ready
SELECT l.fence FROM clients AS c, eskit_lease.lease_acquire('bench/own/' || :client_id, c.session) AS l WHERE c.n = :client_id \gset
\set ready true
\endif
BEGIN;
INSERT INTO work (client, payload)
SELECT :client_id, 'what a projection writes for one event' FROM eskit_lease.fence_check('bench/own/' || :client_id, :fence);
COMMIT;
