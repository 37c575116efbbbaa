GRANT EXECUTE ON FUNCTION eskit_lease.session_watch(pg_catalog.uuid, pg_catalog.regclass) TO {role}
