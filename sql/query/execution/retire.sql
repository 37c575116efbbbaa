-- Deletes keys that are done or resolved; the WHERE clause matches the index. Failed keys and keys in doubt stay until
-- they are resolved.
WITH gone AS (
    DELETE FROM eskit_lease._executions
    WHERE ctid = ANY (ARRAY (
        SELECT ctid FROM eskit_lease._executions
        WHERE (state = 'done' OR resolved_at IS NOT NULL)
          AND coalesce(resolved_at, finished_at) >= $3 AND coalesce(resolved_at, finished_at) < statement_timestamp() - make_interval(secs => $1)
        ORDER BY coalesce(resolved_at, finished_at)
        LIMIT $2
        FOR UPDATE SKIP LOCKED))
    RETURNING coalesce(resolved_at, finished_at) AS ended)
SELECT count(*), max(ended) FROM gone
