UPDATE eskit_lease._groups SET stale = true WHERE group_name = $1
