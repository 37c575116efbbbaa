WITH gone AS (
    DELETE FROM eskit_lease._dead_items
    WHERE ctid = ANY (ARRAY (
        SELECT ctid FROM eskit_lease._dead_items
        WHERE died_at >= $3 AND died_at < statement_timestamp() - make_interval(secs => $1)
        ORDER BY died_at
        LIMIT $2
        FOR UPDATE SKIP LOCKED))
    RETURNING died_at AS ended)
SELECT count(*), max(ended) FROM gone
