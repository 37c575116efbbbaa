-- Everything that the extension creates, so that each change of its surface shows here.
\pset format unaligned
\pset null -

CREATE TEMP VIEW members AS
SELECT d.classid, d.objid, pg_describe_object(d.classid, d.objid, d.objsubid) COLLATE "C" AS member
FROM pg_depend AS d
JOIN pg_extension AS e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
WHERE e.extname = 'eskit_lease' AND d.deptype = 'e'
  -- From 18 on the row types of tables and views are members too.
  AND NOT (d.classid = 'pg_type'::regclass
           AND (SELECT coalesce(c.relkind <> 'c', t.typelem <> 0) FROM pg_type AS t LEFT JOIN pg_class AS c ON c.oid = t.typrelid WHERE t.oid = d.objid));

SELECT member FROM members ORDER BY member;

SELECT extrelocatable, extnamespace::regnamespace, extconfig::regclass[], extcondition,
       extversion ~ '^[0-9]+\.[0-9]+\.[0-9]+$' AS semantic
FROM pg_extension WHERE extname = 'eskit_lease';

-- Functions: their arguments and results, and how the planner may use them. None is SECURITY DEFINER, none is
-- overloaded.
SELECT p.proname COLLATE "C" AS function, pg_get_function_arguments(p.oid) AS takes, pg_get_function_result(p.oid) AS gives,
       CASE p.provolatile WHEN 'i' THEN 'immutable' WHEN 's' THEN 'stable' ELSE 'volatile' END AS volatility,
       CASE p.proparallel WHEN 's' THEN 'safe' WHEN 'r' THEN 'restricted' ELSE 'unsafe' END AS parallel,
       p.proisstrict AS strict, nullif(p.prorows, 0) AS rows
FROM members AS m JOIN pg_proc AS p ON m.classid = 'pg_proc'::regclass AND p.oid = m.objid
ORDER BY 1;

SELECT count(*) AS security_definer
FROM members AS m JOIN pg_proc AS p ON m.classid = 'pg_proc'::regclass AND p.oid = m.objid
WHERE p.prosecdef;

SELECT p.proname AS overloaded
FROM members AS m JOIN pg_proc AS p ON m.classid = 'pg_proc'::regclass AND p.oid = m.objid
GROUP BY 1 HAVING count(*) > 1;

SELECT p.proname COLLATE "C" AS function, obj_description(p.oid, 'pg_proc') AS comment
FROM members AS m JOIN pg_proc AS p ON m.classid = 'pg_proc'::regclass AND p.oid = m.objid
ORDER BY 1;

-- No role writes through a view, even if it may write the tables.
SELECT c.relname
FROM members AS m JOIN pg_class AS c ON m.classid = 'pg_class'::regclass AND c.oid = m.objid
WHERE c.relkind = 'v' AND pg_relation_is_updatable(c.oid, true) <> 0;

-- Views, and the private tables and sequences.
SELECT c.relname COLLATE "C" AS relation, c.relkind AS kind, obj_description(c.oid, 'pg_class') AS comment
FROM members AS m JOIN pg_class AS c ON m.classid = 'pg_class'::regclass AND c.oid = m.objid
ORDER BY 1;

SELECT c.relname COLLATE "C" AS relation, a.attname AS column, format_type(a.atttypid, a.atttypmod) AS type, a.attnotnull AS not_null,
       col_description(c.oid, a.attnum) AS comment
FROM members AS m
JOIN pg_class AS c ON m.classid = 'pg_class'::regclass AND c.oid = m.objid AND c.relkind IN ('v', 'r')
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0
ORDER BY 1, a.attnum;

-- The composite types that functions answer with.
SELECT t.typname COLLATE "C" AS type, a.attname AS column, format_type(a.atttypid, a.atttypmod) AS column_type, col_description(t.typrelid, a.attnum) AS comment
FROM members AS m
JOIN pg_type AS t ON m.classid = 'pg_type'::regclass AND t.oid = m.objid
JOIN pg_attribute AS a ON a.attrelid = t.typrelid
ORDER BY 1, a.attnum;

SELECT c.relname COLLATE "C" AS table, pg_get_indexdef(i.indexrelid) AS index
FROM members AS m
JOIN pg_class AS c ON m.classid = 'pg_class'::regclass AND c.oid = m.objid
JOIN pg_index AS i ON i.indrelid = c.oid
ORDER BY 1, i.indexrelid::regclass::text COLLATE "C";

SELECT c.relname COLLATE "C" AS table, k.conname, pg_get_constraintdef(k.oid) AS constraint
FROM members AS m
JOIN pg_class AS c ON m.classid = 'pg_class'::regclass AND c.oid = m.objid
JOIN pg_constraint AS k ON k.conrelid = c.oid AND k.contype <> 'n'
ORDER BY 1, 2;

SELECT schemaname, sequencename, data_type, start_value, min_value, max_value, increment_by, cycle, cache_size
FROM pg_sequences WHERE schemaname = 'eskit_lease' ORDER BY 2;

-- Objects without a comment: only the sequence that PostgreSQL makes for an identity column.
SELECT member AS without_comment
FROM members
WHERE classid IN ('pg_proc'::regclass, 'pg_class'::regclass, 'pg_type'::regclass, 'pg_namespace'::regclass)
  AND CASE classid WHEN 'pg_proc'::regclass THEN obj_description(objid, 'pg_proc')
                   WHEN 'pg_type'::regclass THEN obj_description(objid, 'pg_type')
                   WHEN 'pg_class'::regclass THEN obj_description(objid, 'pg_class')
                   ELSE obj_description(objid, 'pg_namespace') END IS NULL
  AND NOT EXISTS (SELECT FROM pg_depend AS d
                  WHERE d.classid = members.classid AND d.objid = members.objid AND d.deptype = 'i' AND d.refclassid = 'pg_class'::regclass)
UNION ALL
SELECT format('column %s of view %s', a.attname, c.relname)
FROM members AS m
JOIN pg_class AS c ON m.classid = 'pg_class'::regclass AND c.oid = m.objid AND c.relkind = 'v'
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0
WHERE col_description(c.oid, a.attnum) IS NULL
UNION ALL
SELECT format('column %s of type %s', a.attname, t.typname)
FROM members AS m
JOIN pg_type AS t ON m.classid = 'pg_type'::regclass AND t.oid = m.objid AND t.typname NOT LIKE '\_%'
JOIN pg_attribute AS a ON a.attrelid = t.typrelid
WHERE col_description(t.typrelid, a.attnum) IS NULL
ORDER BY 1;

-- What roles other than the owner may do.
SELECT m.member, coalesce(nullif(x.grantee, 0)::regrole::text, 'PUBLIC') AS grantee, x.privilege_type
FROM members AS m
LEFT JOIN pg_proc AS p ON m.classid = 'pg_proc'::regclass AND p.oid = m.objid
LEFT JOIN pg_class AS c ON m.classid = 'pg_class'::regclass AND c.oid = m.objid
LEFT JOIN pg_type AS t ON m.classid = 'pg_type'::regclass AND t.oid = m.objid
LEFT JOIN pg_namespace AS n ON m.classid = 'pg_namespace'::regclass AND n.oid = m.objid
CROSS JOIN LATERAL aclexplode(CASE
    WHEN p.oid IS NOT NULL THEN coalesce(p.proacl, acldefault('f', p.proowner))
    WHEN c.oid IS NOT NULL THEN coalesce(c.relacl, acldefault(CASE c.relkind WHEN 'S' THEN 's' ELSE 'r' END::"char", c.relowner))
    WHEN t.oid IS NOT NULL THEN coalesce(t.typacl, acldefault('T', t.typowner))
    ELSE coalesce(n.nspacl, acldefault('n', n.nspowner)) END) AS x
WHERE x.grantee <> coalesce(p.proowner, c.relowner, t.typowner, n.nspowner)
ORDER BY 1, 2, 3;

-- Settings.
SELECT name COLLATE "C" AS setting, vartype AS type, unit, boot_val AS default, min_val AS min, max_val AS max, context, short_desc, extra_desc
FROM pg_settings WHERE name LIKE 'eskit\_lease.%' ORDER BY 1;

-- Names of stats().
SELECT name FROM eskit_lease.stats() ORDER BY name COLLATE "C";
