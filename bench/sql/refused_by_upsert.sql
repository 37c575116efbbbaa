\i include/session.sql
INSERT INTO plain_locks AS l (name, owner, until) VALUES ('bench/held', :session, now() + interval '30 s')
ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, until = excluded.until WHERE l.until < now()
RETURNING owner;
