SELECT resource FROM eskit_lease._bridges WHERE target = $1 AND key = $2
