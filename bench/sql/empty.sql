\i include/session.sql
SELECT * FROM bench_empty(:session);
