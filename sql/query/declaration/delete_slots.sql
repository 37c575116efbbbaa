DELETE FROM eskit_lease._leases WHERE resource = $1 AND slot >= $2
