\i include/session.sql
INSERT INTO plain_locks AS l (name, owner, until)
SELECT 'bench/held', :session, now() + interval '30 s'
WHERE NOT EXISTS (SELECT FROM plain_locks WHERE name = 'bench/held' AND until > now())
ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, until = excluded.until WHERE l.until < now()
RETURNING l.owner, l.until;
