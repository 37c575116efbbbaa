DELETE FROM eskit_lease._declarations WHERE resource = $1
