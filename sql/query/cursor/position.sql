SELECT position FROM eskit_lease._cursors WHERE group_name = $1 AND partition = $2
