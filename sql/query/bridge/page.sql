SELECT resource FROM eskit_lease._declarations WHERE kind = 'bridge' AND resource > $1 ORDER BY resource LIMIT $2
