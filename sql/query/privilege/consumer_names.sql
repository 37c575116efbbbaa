GRANT EXECUTE ON FUNCTION
    eskit_lease.table_fence(pg_catalog.regclass, pg_catalog.text, pg_catalog.text),
    eskit_lease.table_unfence(pg_catalog.regclass, boolean),
    eskit_lease.cursor_report_head(pg_catalog.text, integer, bigint),
    eskit_lease.position_next()
TO {role}
