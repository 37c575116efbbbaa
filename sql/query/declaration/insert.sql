INSERT INTO eskit_lease._declarations (resource, kind, slots, owner) VALUES ($1, $2, $3, $4)
