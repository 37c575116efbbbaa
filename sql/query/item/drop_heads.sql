DELETE FROM eskit_lease._item_heads WHERE queue = $1
