GRANT EXECUTE ON FUNCTION
    eskit_lease.lease_declare(pg_catalog.text, boolean),
    eskit_lease.lease_undeclare(pg_catalog.text, boolean)
TO {role}
