WITH spare AS (
    DELETE FROM eskit_lease._members
    WHERE group_name = $1 AND session = $2 AND EXISTS (SELECT FROM eskit_lease._members AS m WHERE m.group_name = $1 AND m.session = $3))
UPDATE eskit_lease._members
SET session = $3
WHERE group_name = $1 AND session = $2 AND NOT EXISTS (SELECT FROM eskit_lease._members AS m WHERE m.group_name = $1 AND m.session = $3)
