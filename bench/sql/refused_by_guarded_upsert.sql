\i include/session.sql
WITH won AS (
    INSERT INTO plain_locks AS l (name, owner, until)
    SELECT 'bench/held', :session, now() + interval '30 s'
    WHERE NOT EXISTS (SELECT FROM plain_locks WHERE name = 'bench/held' AND until > now())
    ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, until = excluded.until WHERE l.until < now()
    RETURNING l.owner, l.until
)
SELECT true AS granted, owner, until FROM won
UNION ALL
SELECT false, owner, until FROM plain_locks WHERE name = 'bench/held' AND until > now() AND NOT EXISTS (SELECT FROM won);
