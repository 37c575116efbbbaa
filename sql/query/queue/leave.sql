DELETE FROM eskit_lease._waiters WHERE ctid = ANY ($1)
