SELECT c.relname::pg_catalog.text,
       coalesce(pg_catalog.obj_description(c.oid, 'pg_class'), ''),
       a.attname::pg_catalog.text,
       pg_catalog.format_type(a.atttypid, a.atttypmod),
       coalesce(pg_catalog.col_description(c.oid, a.attnum), '')
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0
WHERE c.relnamespace = 'eskit_lease'::pg_catalog.regnamespace AND c.relkind = 'v'
ORDER BY c.relname, a.attnum
