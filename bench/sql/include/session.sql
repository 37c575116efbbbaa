-- This connection's session is read once; the measurement follows.
\if not :ready
SELECT session FROM clients WHERE n = :client_id \gset
\set ready true
\endif
