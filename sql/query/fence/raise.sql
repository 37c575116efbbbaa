-- Seconds since 2025-01-01 and a minute, each worth 2^22 fences or numbers of items, to the microsecond: below 2^53 until 2093.
WITH clock AS (SELECT floor((extract(epoch FROM clock_timestamp()) - 1735689600 + 60) * (1 << 22))::bigint AS reached)
SELECT
    setval('eskit_lease.fence_seq', greatest(f.last_value + 1, reached), false),
    setval('eskit_lease._item_seq', greatest(i.last_value + 1, reached), false)
FROM clock, eskit_lease.fence_seq AS f, eskit_lease._item_seq AS i
