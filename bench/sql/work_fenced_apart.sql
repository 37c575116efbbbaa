\i include/lease.sql
BEGIN;
SELECT eskit_lease.fence_check('bench/own/' || :client_id, :fence);
INSERT INTO work (client, payload) VALUES (:client_id, 'what a projection writes for one event');
COMMIT;
