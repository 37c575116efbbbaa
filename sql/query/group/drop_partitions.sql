DELETE FROM eskit_lease._partitions WHERE group_name = $1
