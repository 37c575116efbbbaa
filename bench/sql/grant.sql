\i include/session.sql
\set n random(1, 9000000000000000000)
SELECT coalesce(fence, 0) AS fence FROM eskit_lease.lease_acquire('bench/new/' || :client_id || '/' || :n, :session) \gset
SELECT eskit_lease.lease_release('bench/new/' || :client_id || '/' || :n, :fence);
