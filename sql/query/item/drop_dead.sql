DELETE FROM eskit_lease._dead_items WHERE queue = $1
