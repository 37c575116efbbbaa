GRANT SELECT ON eskit_lease.sessions, eskit_lease.leases, eskit_lease.waiters, eskit_lease.blockers TO {role};
GRANT EXECUTE ON FUNCTION eskit_lease.stats(), eskit_lease._standing(pg_catalog.uuid, bigint, integer) TO {role}
