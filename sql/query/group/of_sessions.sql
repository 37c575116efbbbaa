SELECT group_name FROM eskit_lease._members WHERE session = ANY ($1)
