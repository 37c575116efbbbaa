SELECT true FROM eskit_lease._leases WHERE resource = $1 AND slot = $2 AND fence = $3
