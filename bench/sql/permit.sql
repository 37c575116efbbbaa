\i include/session.sql
SELECT coalesce(fence, 0) AS fence FROM eskit_lease.lease_acquire('bench/permits/' || :permits, :session) \gset
SELECT eskit_lease.lease_release('bench/permits/' || :permits, :fence);
