SELECT setval('eskit_lease._item_seq', $1) FROM eskit_lease._item_seq WHERE last_value < $1
