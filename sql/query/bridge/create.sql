INSERT INTO eskit_lease._bridges (resource, lock_key, target, key, owner_column, until_column) VALUES ($1, $2, $3, $4, $5, $6)
