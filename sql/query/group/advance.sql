UPDATE eskit_lease._groups SET generation = generation + $2, stale = false WHERE group_name = $1 AND (stale OR $2 > 0)
