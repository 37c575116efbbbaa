BEGIN;
\i items.sql
COMMIT;
