-- The session of this connection is read once; what follows is measured.
\if not :ready
SELECT session FROM clients WHERE n = :client_id \gset
\set ready true
\endif
\set n random(1, 9000000000000000000)
SELECT coalesce(fence, 0) AS fence FROM eskit_lease.lease_acquire('bench/new/' || :client_id || '/' || :n, :session) \gset
SELECT eskit_lease.lease_release('bench/new/' || :client_id || '/' || :n, :fence);
