BEGIN;
INSERT INTO work (client, payload) VALUES (:client_id, 'what a projection writes for one event');
COMMIT;
