GRANT EXECUTE ON FUNCTION eskit_lease.notify_me(pg_catalog.interval) TO {role}
