-- The reference in psql: its pages, the width of each, and topics without a page.
\i pg_test/sql/include/helpers.psql
\pset format unaligned
\pset tuples_only on
SELECT help();
SELECT help('keys');
SELECT help('semaphore_create');
SELECT help('lease_release_many');
SELECT help('session_close');
SELECT help('semaphores');
-- A row that is the answer, with its columns.
SELECT help('lease_acquire') ~ '\n    returns granted boolean, fence bigint, slot integer, holder text,';
-- A function is found as it is called or by its former name; a setting, as it is set.
SELECT help(' Eskit_Lease.session_wait(session, revision) ') = help('session_wait') AS "as it is called";
SELECT help('eskit_lease.max_ttl');
SELECT help('max_ttl') = help('eskit_lease.max_ttl') AS "by either name", help('worker');
SELECT help('cursor_head');
-- A topic and a view of one name.
SELECT string_agg(line, E'\n') FILTER (WHERE line ~ '^\S')
FROM string_to_table(help('bridges'), E'\n') AS line;

-- Each function, view and setting has a page and is listed under a topic; no line has over 96 columns, to which psql adds up to 3.
CREATE TEMP TABLE pages AS
SELECT kind, name, help(name) AS page
FROM (SELECT 'function' AS kind, p.proname::text AS name FROM pg_proc AS p WHERE p.pronamespace = 'eskit_lease'::regnamespace AND p.proname NOT LIKE '\_%'
      UNION ALL
      SELECT 'view', c.relname FROM pg_class AS c WHERE c.relnamespace = 'eskit_lease'::regnamespace AND c.relkind = 'v'
      UNION ALL
      SELECT 'setting', s.name FROM pg_settings AS s WHERE s.name LIKE 'eskit\_lease.%'
      UNION ALL
      SELECT 'topic', m[1] FROM regexp_matches(help(), '^    (\w+)', 'gm') AS m) AS n;
SELECT max(length(line)) FROM pages, string_to_table(page, E'\n') AS line;
SELECT kind, count(*) > 10 AS many, bool_and(length(page) > 40) AS filled FROM pages GROUP BY 1 ORDER BY 1;
SELECT n.kind, n.name AS unlisted
FROM pages AS n
WHERE n.kind <> 'topic' AND n.page !~ 'Deprecated: '
  AND NOT EXISTS (SELECT FROM pages AS t WHERE t.kind = 'topic' AND t.page ~ format('(^|\n)    (view )?%s(\(|\n|$)', replace(n.name, '.', '\.')))
ORDER BY 1, 2;
-- All that a COMMENT says is there, in the same words.
SELECT p.proname AS incomplete
FROM pg_proc AS p
JOIN pages AS n ON n.kind = 'function' AND n.name = p.proname
WHERE p.pronamespace = 'eskit_lease'::regnamespace
  AND strpos(regexp_replace(n.page, '\s+', ' ', 'g'), regexp_replace(obj_description(p.oid, 'pg_proc'), '\s+', ' ', 'g')) = 0;

-- Topics without a page.
SELECT pg_temp.error_of(format('SELECT eskit_lease.help(%L)', topic))
FROM unnest(ARRAY['leese_acquire', 'heartbeat', 'max_session', 'zookeeper', '_standing', ' ', '', repeat('x', 255), repeat('x', 256)]) AS topic;

-- Any role may read it; it writes nothing.
CREATE ROLE regress_reader;
SET ROLE regress_reader;
SET default_transaction_read_only = on;
SELECT help('group_lock_key');
RESET default_transaction_read_only;
RESET ROLE;
DROP ROLE regress_reader;
