INSERT INTO eskit_lease._members (group_name, session, joined_at, joined, boot_id)
VALUES ($1, $2, clock_timestamp(), $3, $4)
