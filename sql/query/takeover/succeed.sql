INSERT INTO eskit_lease._successions (session, successor) VALUES ($1, $2)
