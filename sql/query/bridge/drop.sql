DELETE FROM eskit_lease._bridges WHERE resource = $1
