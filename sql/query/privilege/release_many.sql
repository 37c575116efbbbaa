GRANT EXECUTE ON FUNCTION eskit_lease.group_release_many(pg_catalog.text, integer[], bigint[]) TO {role}
