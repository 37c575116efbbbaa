-- Lists a table and its partitions, the other roles that may replace their triggers, and each trigger that has one of
-- the names $4. A trigger that does not call our function is shown without arguments. $2, $3: the arguments that the
-- triggers must have.
SELECT pg_catalog.format('%I.%I', n.nspname, c.relname),
       c.relname::text,
       n.nspname = 'eskit_lease',
       c.relkind::text,
       c.relispartition,
       NOT c.relispartition AND EXISTS (SELECT FROM pg_catalog.pg_inherits AS i WHERE i.inhrelid = c.oid)
           OR c.relkind = 'r' AND EXISTS (SELECT FROM pg_catalog.pg_inherits AS i WHERE i.inhparent = c.oid),
       pg_catalog.concat_ws(', ', pg_catalog.quote_literal($2), pg_catalog.quote_literal($3)),
       (SELECT pg_catalog.array_agg(CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_catalog.pg_get_userbyid(a.grantee)::text END)
        FROM pg_catalog.aclexplode(c.relacl) AS a
        WHERE a.privilege_type = 'TRIGGER' AND a.grantee <> c.relowner),
       t.tgname::text,
       CASE WHEN t.tgfoid = f.oid AND t.tgnargs BETWEEN 1 AND 2 THEN t.tgargs END,
       t.tgtype::integer,
       t.tgqual IS NULL AND t.tgattr::text = '',
       t.tgoldtable IS NOT NULL,
       t.tgnewtable IS NOT NULL,
       t.tgconstraint <> 0,
       t.tgparentid <> 0,
       t.tgenabled = 'A'
FROM (SELECT $1 AS relid UNION SELECT p.relid FROM pg_catalog.pg_partition_tree($1) AS p) AS r
JOIN pg_catalog.pg_class AS c ON c.oid = r.relid
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_proc AS f ON f.proname = 'require_fence'
JOIN pg_catalog.pg_namespace AS o ON o.oid = f.pronamespace AND o.nspname = 'eskit_lease'
LEFT JOIN pg_catalog.pg_trigger AS t ON t.tgrelid = c.oid AND t.tgname::text = ANY ($4)
ORDER BY c.oid <> $1, c.oid, t.tgname
