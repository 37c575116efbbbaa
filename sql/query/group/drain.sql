UPDATE eskit_lease._groups SET resize_to = $2, stale = true WHERE group_name = $1
