\i include/session.sql
SELECT array_agg(id) AS ids, min(fence) AS fence FROM eskit_lease.item_claim('bench', :session, :batch) \gset
SELECT eskit_lease.item_done(:ids, :fence);
