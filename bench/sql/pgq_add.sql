BEGIN;
SET LOCAL synchronous_commit = off;
SELECT count(pgq.insert_event('bench', 'item', n::text)) FROM generate_series(1, :batch) AS n;
COMMIT;
BEGIN;
SET LOCAL synchronous_commit = off;
SELECT pgq.ticker('bench');
COMMIT;
