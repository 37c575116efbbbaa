INSERT INTO eskit_lease._deaths (session) VALUES ($1)
