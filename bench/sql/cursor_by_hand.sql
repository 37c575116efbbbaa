BEGIN;
INSERT INTO work (client, payload) VALUES (:client_id, 'what a projection writes for one event');
UPDATE plain_cursors SET position = position + 1, committed_at = clock_timestamp() WHERE n = :client_id;
COMMIT;
