DELETE FROM eskit_lease._lease_names WHERE name = $1
