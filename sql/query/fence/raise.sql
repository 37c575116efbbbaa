-- The time since 2025-01-01 in seconds, exact to the microsecond, plus a minute, times 2^22: below 2^53 until 2093. The
-- sequences step by 64: the lower 6 bits are drawn by chance.
WITH clock AS (SELECT floor((extract(epoch FROM clock_timestamp()) - 1735689600 + 60) * (1 << 22))::bigint AS reached)
SELECT
    setval('eskit_lease.fence_seq', ((greatest(f.last_value, reached) >> 6) + 1 << 6) | (get_byte(uuid_send(gen_random_uuid()), 0) & 63), false),
    setval('eskit_lease._item_seq', ((greatest(i.last_value, reached) >> 6) + 1 << 6) | (get_byte(uuid_send(gen_random_uuid()), 0) & 63), false)
FROM clock, eskit_lease.fence_seq AS f, eskit_lease._item_seq AS i
