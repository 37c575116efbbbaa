-- Returns a reason why the worker cannot write two columns ($2, $3) of a row of a table ($1) by its ctid; no row if it
-- can. Such a write maintains only entries of indexes, and runs PostgreSQL's own code alone. The caller's lock of the
-- table keeps others from making such obstacles, except indexes (CONCURRENTLY). All indexes in the catalog count, ready
-- or not, as no row is written to one that came later. Objects that are not built in have an oid from 16384 on. The
-- types of the table's columns count too: an index keeps a user's range type as anyrange, and such types call a
-- function of their owner's. Other access methods may take long for one row: GIN took 17 s for an array of 6 million.
SELECT 'It is of eskit_lease.' AS why
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.oid = $1 AND n.nspname = 'eskit_lease'
UNION ALL
SELECT 'It is a partition.' FROM pg_catalog.pg_class AS c WHERE c.oid = $1 AND c.relispartition
UNION ALL
SELECT 'It takes part in inheritance: there may be another row of this key.'
WHERE EXISTS (SELECT FROM pg_catalog.pg_inherits AS i WHERE i.inhrelid = $1) OR EXISTS (SELECT FROM pg_catalog.pg_inherits AS i WHERE i.inhparent = $1)
UNION ALL
SELECT 'It has row security.' FROM pg_catalog.pg_class AS c WHERE c.oid = $1 AND c.relrowsecurity
UNION ALL
SELECT pg_catalog.format('It has rule "%s".', r.rulename) FROM pg_catalog.pg_rewrite AS r WHERE r.ev_class = $1
UNION ALL
SELECT pg_catalog.format('It has trigger "%s", which fires on UPDATE.', t.tgname)
FROM pg_catalog.pg_trigger AS t
WHERE t.tgrelid = $1 AND NOT t.tgisinternal AND t.tgenabled <> 'D' AND t.tgtype & 16 <> 0
  AND (t.tgattr::text = '' OR $2 = ANY (t.tgattr::smallint[]) OR $3 = ANY (t.tgattr::smallint[]))
UNION ALL
-- A column 0 is the whole row; a CHECK may have none. The write keeps PostgreSQL's own NOT NULL, as it writes no NULL.
SELECT pg_catalog.format('It has constraint "%s".', k.conname)
FROM pg_catalog.pg_constraint AS k
WHERE k.conrelid = $1
  AND (k.contype = 'x' OR k.contype IN ('c', 'f', 'p', 'u') AND (k.conkey IS NULL OR 0::smallint = ANY (k.conkey) OR $2 = ANY (k.conkey) OR $3 = ANY (k.conkey)))
UNION ALL
SELECT pg_catalog.format('Its column "%s" is generated, and kept.', a.attname)
FROM pg_catalog.pg_attribute AS a
WHERE a.attrelid = $1 AND a.attgenerated = 's' AND NOT a.attisdropped
UNION ALL
SELECT pg_catalog.format('It has index "%s" %s.', c.relname, CASE
           WHEN i.indexprs IS NOT NULL THEN 'on an expression'
           WHEN i.indpred IS NOT NULL THEN 'with a condition'
           WHEN NOT m.amname = ANY (ARRAY['btree', 'hash', 'brin']) THEN pg_catalog.format('of access method %s', m.amname)
           WHEN i.indisunique AND (NOT i.indimmediate OR $2 = ANY (i.indkey::smallint[]) OR $3 = ANY (i.indkey::smallint[]))
               THEN 'which is unique and has one of the columns, or is deferrable'
           ELSE 'on types that are not PostgreSQL''s own'
       END)
FROM pg_catalog.pg_index AS i
JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid
JOIN pg_catalog.pg_am AS m ON m.oid = c.relam
WHERE i.indrelid = $1
  AND (i.indexprs IS NOT NULL OR i.indpred IS NOT NULL
       OR i.indisunique AND (NOT i.indimmediate OR $2 = ANY (i.indkey::smallint[]) OR $3 = ANY (i.indkey::smallint[]))
       OR NOT m.amname = ANY (ARRAY['btree', 'hash', 'brin'])
       OR EXISTS (SELECT FROM pg_catalog.unnest(i.indclass::oid[]) AS o WHERE o >= 16384)
       OR EXISTS (SELECT FROM pg_catalog.pg_attribute AS a WHERE a.attrelid = i.indexrelid AND a.atttypid >= 16384)
       OR EXISTS (SELECT FROM pg_catalog.pg_attribute AS a WHERE a.attrelid = $1 AND a.attnum = ANY (i.indkey::smallint[]) AND a.atttypid >= 16384))
LIMIT 1
