SELECT group_name FROM eskit_lease._groups WHERE group_name > $1 ORDER BY group_name LIMIT $2
