SELECT queue FROM eskit_lease._queues WHERE group_name = $1 ORDER BY queue
