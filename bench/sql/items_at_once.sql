BEGIN;
SELECT array_agg(i.id) AS ids, min(i.fence) AS fence FROM clients AS c, eskit_lease.item_claim('bench', c.session, :batch) AS i WHERE c.n = :client_id \gset
SELECT eskit_lease.item_done(:ids, :fence);
COMMIT;
