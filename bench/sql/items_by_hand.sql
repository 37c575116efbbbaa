WITH claimed AS (
    UPDATE plain_items SET claimed_by = :client_id, claimed_at = now(), attempt = attempt + 1
    WHERE id IN (SELECT id FROM plain_items WHERE claimed_by IS NULL ORDER BY id LIMIT :batch FOR UPDATE SKIP LOCKED)
    RETURNING id, payload)
SELECT array_agg(id) AS ids, count(payload) FROM claimed \gset
DELETE FROM plain_items WHERE id = ANY (:ids::bigint[]) AND claimed_by = :client_id;
