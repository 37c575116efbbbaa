INSERT INTO eskit_lease._sessions (session, consumer, role, ttl_ms, boot_id, opened_at, private, request, grace_of, fencer)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
