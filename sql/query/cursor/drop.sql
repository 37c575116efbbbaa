DELETE FROM eskit_lease._cursors WHERE group_name = $1
