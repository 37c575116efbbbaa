\i include/session.sql
SELECT coalesce(fence, 0) AS fence FROM eskit_lease.lease_acquire('bench/mine/' || :client_id, :session) \gset
SELECT eskit_lease.lease_release('bench/mine/' || :client_id, :fence);
