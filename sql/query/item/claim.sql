INSERT INTO eskit_lease._claims (fence, session, queue, places, partitions, ids, claimed_at, ordering)
VALUES ($1, $2, $3, $4, $5, $6, clock_timestamp(), $7)
