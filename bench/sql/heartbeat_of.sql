SELECT * FROM eskit_lease.session_heartbeat(:of);
