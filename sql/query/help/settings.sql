SELECT s.name, s.boot_val, s.unit, s.min_val, s.max_val, s.context, s.short_desc, s.extra_desc
FROM pg_catalog.pg_settings AS s
WHERE s.name LIKE 'eskit\_lease.%'
ORDER BY s.name
