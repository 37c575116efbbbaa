-- The condition of the index: what is done or resolved. All else is to be seen by somebody first.
DELETE FROM eskit_lease._executions
WHERE ctid = ANY (ARRAY (
    SELECT ctid FROM eskit_lease._executions
    WHERE (state = 'done' OR resolved_at IS NOT NULL)
      AND coalesce(resolved_at, finished_at) < statement_timestamp() - make_interval(secs => $1)
    ORDER BY coalesce(resolved_at, finished_at)
    LIMIT $2
    FOR UPDATE SKIP LOCKED))
