DELETE FROM eskit_lease._heads WHERE group_name = $1
