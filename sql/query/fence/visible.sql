SELECT true FROM eskit_lease._leases WHERE resource = $1 AND slot = 0 AND fence = $2
