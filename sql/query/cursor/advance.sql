-- The common case of a commit and of an acknowledgement: the cursor is at $5 or beyond, and nothing beyond the cursor is acknowledged.
UPDATE eskit_lease._cursors SET position = $3, fence = $4, committed_at = clock_timestamp()
WHERE group_name = $1 AND partition = $2 AND position < $3 AND position >= $5 AND isempty(acked)
