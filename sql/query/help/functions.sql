SELECT p.proname::pg_catalog.text,
       pg_catalog.pg_get_function_arguments(p.oid),
       coalesce((SELECT pg_catalog.string_agg(a.attname || ' ' || pg_catalog.format_type(a.atttypid, a.atttypmod), ', ' ORDER BY a.attnum)
                 FROM pg_catalog.pg_type AS t
                 JOIN pg_catalog.pg_attribute AS a ON a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
                 WHERE t.oid = p.prorettype AND t.typtype = 'c'),
                pg_catalog.pg_get_function_result(p.oid)),
       coalesce(pg_catalog.obj_description(p.oid, 'pg_proc'), '')
FROM pg_catalog.pg_proc AS p
WHERE p.pronamespace = 'eskit_lease'::pg_catalog.regnamespace AND p.proname NOT LIKE '\_%'
ORDER BY p.proname
