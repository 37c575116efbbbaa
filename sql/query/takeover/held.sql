SELECT resource, slot FROM eskit_lease._leases WHERE session = $1 LIMIT $2
