INSERT INTO eskit_lease._waiters (resource, session, queued_at) VALUES ($1, $2, clock_timestamp())
