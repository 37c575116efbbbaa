\i include/session.sql
BEGIN;
WITH held AS (SELECT FROM plain_locks WHERE name = 'bench/own/' || :client_id AND owner = :session FOR SHARE)
INSERT INTO work (client, payload) SELECT :client_id, 'what a projection writes for one event' FROM held;
COMMIT;
