\i include/session.sql
SELECT 1;
