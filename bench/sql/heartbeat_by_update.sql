\i include/session.sql
UPDATE plain_sessions SET beat_at = clock_timestamp() WHERE n = :client_id;
