-- Seconds since 2025-01-01 and a minute, each worth 2^22 fences, to the microsecond: below 2^53 until 2093.
SELECT setval(
    'eskit_lease.fence_seq',
    greatest(last_value + 1, floor((extract(epoch FROM clock_timestamp()) - 1735689600 + 60) * (1 << 22))::bigint),
    false)
FROM eskit_lease.fence_seq
