INSERT INTO eskit_lease._claims (fence, session, queue, claimed_at, places, partitions, ids, ordering)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
