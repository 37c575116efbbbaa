UPDATE eskit_lease._leases SET session = $3 WHERE resource = $1 AND slot = $2
