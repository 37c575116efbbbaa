DELETE FROM eskit_lease._dead_items
WHERE ctid = ANY (ARRAY (
    SELECT ctid FROM eskit_lease._dead_items
    WHERE died_at < statement_timestamp() - make_interval(secs => $1)
    ORDER BY died_at
    LIMIT $2
    FOR UPDATE SKIP LOCKED))
