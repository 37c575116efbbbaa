SELECT setval($1, $2)
