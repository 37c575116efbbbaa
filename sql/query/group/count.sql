UPDATE eskit_lease._members SET counted = $3 WHERE group_name = $1 AND session = ANY ($2)
