BEGIN;
SELECT array_agg(id) AS ids, count(payload) FROM (SELECT id, payload FROM plain_items ORDER BY id LIMIT :batch FOR UPDATE SKIP LOCKED) AS i \gset
DELETE FROM plain_items WHERE id = ANY (:ids::bigint[]);
COMMIT;
