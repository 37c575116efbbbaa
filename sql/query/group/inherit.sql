WITH old AS (DELETE FROM eskit_lease._members WHERE group_name = $1 AND session = $2 RETURNING *)
INSERT INTO eskit_lease._members (group_name, session, joined_at, joined, boot_id, counted)
SELECT group_name, $3, joined_at, joined, boot_id, counted FROM old
ON CONFLICT (group_name, session) DO NOTHING
