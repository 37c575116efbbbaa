WITH gone AS (
    DELETE FROM eskit_lease._leases
    WHERE ctid = ANY (ARRAY (
        SELECT ctid FROM eskit_lease._leases
        WHERE session IS NULL AND released_at >= $3 AND released_at < statement_timestamp() - make_interval(secs => $1)
        ORDER BY released_at
        LIMIT $2
        FOR UPDATE SKIP LOCKED))
    RETURNING released_at AS ended)
SELECT count(*), max(ended) FROM gone
