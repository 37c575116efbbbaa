INSERT INTO eskit_lease._bridges (resource, lock_key) VALUES ($1, $2)
