-- The session of this connection is read once; what follows is measured.
\if not :ready
SELECT session FROM clients WHERE n = :client_id \gset
\set ready true
\endif
SELECT coalesce(fence, 0) AS fence FROM eskit_lease.lease_acquire('bench/permits/' || :permits, :session) \gset
SELECT eskit_lease.lease_release('bench/permits/' || :permits, :fence);
