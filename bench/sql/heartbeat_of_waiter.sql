\set w random(1, :waiters)
SELECT h.* FROM storm_waiters AS w, eskit_lease.session_heartbeat(w.session) AS h WHERE w.n = :w;
