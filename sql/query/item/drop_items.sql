DELETE FROM eskit_lease._items WHERE queue = $1
