DELETE FROM eskit_lease._members WHERE group_name = $1 AND session = $2
