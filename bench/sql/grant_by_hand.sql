\i include/session.sql
\set n random(1, 9000000000000000000)
INSERT INTO plain_leases (resource, slot, session, fence, timeline, granted_at)
VALUES ('bench/new/' || :client_id || '/' || :n, 0, :session, nextval('plain_fences'), 1, clock_timestamp()) RETURNING fence \gset
UPDATE plain_leases SET session = NULL, released_at = clock_timestamp()
WHERE resource = 'bench/new/' || :client_id || '/' || :n AND slot = 0 AND fence = :fence;
