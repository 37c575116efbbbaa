UPDATE eskit_lease._successions SET successor = $2 WHERE successor = $1
