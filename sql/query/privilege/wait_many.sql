GRANT EXECUTE ON FUNCTION eskit_lease.session_wait_many(pg_catalog.uuid[], bigint[], pg_catalog.interval) TO {role}
