INSERT INTO eskit_lease._lease_names (name, prefix, owner) VALUES ($1, $2, $3)
