WITH gone AS (
    DELETE FROM eskit_lease._history
    WHERE ctid = ANY (ARRAY (
        SELECT ctid FROM eskit_lease._history
        WHERE at >= to_timestamp($3) AND at < statement_timestamp() - make_interval(secs => $1)
        ORDER BY at
        LIMIT $2
        FOR UPDATE SKIP LOCKED))
    RETURNING at AS ended)
SELECT count(*), extract(epoch FROM max(ended))::float8 FROM gone
