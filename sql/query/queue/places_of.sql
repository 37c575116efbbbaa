SELECT resource, ctid FROM eskit_lease._waiters WHERE session = ANY ($1) LIMIT $2 OFFSET $3
