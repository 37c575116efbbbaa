\i include/session.sql
SELECT * FROM eskit_lease.session_heartbeat(:session);
