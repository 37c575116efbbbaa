UPDATE eskit_lease._groups SET resize_to = NULL, stale = true WHERE group_name = $1
