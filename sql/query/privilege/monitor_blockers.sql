GRANT EXECUTE ON FUNCTION eskit_lease._open_transaction(pg_catalog.xid) TO {role}
