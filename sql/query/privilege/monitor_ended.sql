GRANT EXECUTE ON FUNCTION eskit_lease._ended_at(pg_catalog.uuid, bigint, integer) TO {role}
