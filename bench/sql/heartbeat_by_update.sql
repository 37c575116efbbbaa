-- The session of this connection is read once; what follows is measured.
\if not :ready
SELECT session FROM clients WHERE n = :client_id \gset
\set ready true
\endif
UPDATE plain_sessions SET beat_at = clock_timestamp() WHERE n = :client_id;
