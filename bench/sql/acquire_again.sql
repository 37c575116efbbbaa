\i include/session.sql
SELECT * FROM eskit_lease.lease_acquire('bench/own/' || :client_id, :session);
