SELECT true FROM eskit_lease._waiters WHERE session = $1 OFFSET $2 LIMIT 1
