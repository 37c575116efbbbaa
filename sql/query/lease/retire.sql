WITH gone AS (
    DELETE FROM eskit_lease._leases
    WHERE ctid = ANY (ARRAY (
        SELECT ctid FROM eskit_lease._leases
        WHERE session IS NULL AND released_at >= to_timestamp($3) AND released_at < statement_timestamp() - make_interval(secs => $1)
        ORDER BY released_at
        LIMIT $2
        FOR UPDATE SKIP LOCKED))
    RETURNING released_at AS ended)
SELECT count(*), extract(epoch FROM max(ended))::float8 FROM gone
