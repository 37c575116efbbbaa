GRANT EXECUTE ON FUNCTION eskit_lease.cursor_report_head(pg_catalog.text, integer, bigint) TO {role}
