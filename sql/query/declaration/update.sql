UPDATE eskit_lease._declarations SET slots = $2 WHERE resource = $1
