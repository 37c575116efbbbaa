WITH gone AS (
    DELETE FROM eskit_lease._history
    WHERE ctid = ANY (ARRAY (
        SELECT ctid FROM eskit_lease._history
        WHERE at >= $3 AND at < statement_timestamp() - make_interval(secs => $1)
        ORDER BY at
        LIMIT $2
        FOR UPDATE SKIP LOCKED))
    RETURNING at AS ended)
SELECT count(*), max(ended) FROM gone
