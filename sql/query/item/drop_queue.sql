DELETE FROM eskit_lease._queues WHERE number = $1
