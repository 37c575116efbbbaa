\i include/lease.sql
BEGIN;
INSERT INTO work (client, payload)
SELECT :client_id, 'what a projection writes for one event' FROM bench_empty('00000000-0000-4000-8000-000000000000');
COMMIT;
