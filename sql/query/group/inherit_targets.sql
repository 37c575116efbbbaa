UPDATE eskit_lease._partitions SET target = $3 WHERE group_name = $1 AND target = $2
