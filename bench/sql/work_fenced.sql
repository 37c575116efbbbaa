\i include/lease.sql
BEGIN;
INSERT INTO work (client, payload)
SELECT :client_id, 'what a projection writes for one event' FROM eskit_lease.fence_check('bench/own/' || :client_id, :fence);
COMMIT;
