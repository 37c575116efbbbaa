DELETE FROM eskit_lease._leases
WHERE ctid = ANY (ARRAY (
    SELECT ctid FROM eskit_lease._leases
    WHERE session IS NULL AND released_at < statement_timestamp() - make_interval(secs => $1)
    ORDER BY released_at
    LIMIT $2
    FOR UPDATE SKIP LOCKED))
