-- Deletes in no order, and returns no time from which the next batch could begin.
WITH gone AS (
    DELETE FROM eskit_lease._claims
    WHERE fence = ANY (ARRAY (
        SELECT fence FROM eskit_lease._claims AS c
        WHERE claimed_at >= $3 AND claimed_at < statement_timestamp() - make_interval(secs => $1) AND NOT EXISTS (
            SELECT FROM unnest(c.places, c.partitions) AS p (place, partition)
            JOIN eskit_lease._items AS i ON i.queue = c.queue AND i.partition = coalesce(p.partition, 0) AND i.place = p.place
            WHERE i.claim = c.fence)
        LIMIT $2
        FOR UPDATE SKIP LOCKED))
    RETURNING fence)
SELECT count(*), NULL::timestamptz FROM gone
