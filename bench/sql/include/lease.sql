-- This connection's lease is acquired once; the measurement follows.
\if not :ready
SELECT l.fence FROM clients AS c, eskit_lease.lease_acquire('bench/own/' || :client_id, c.session) AS l WHERE c.n = :client_id \gset
\set ready true
\endif
