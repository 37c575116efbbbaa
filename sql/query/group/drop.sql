DELETE FROM eskit_lease._groups WHERE group_name = $1
