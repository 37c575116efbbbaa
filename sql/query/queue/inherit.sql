UPDATE eskit_lease._waiters SET session = $2 WHERE ctid = ANY ($1)
