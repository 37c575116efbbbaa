-- The session of this connection is read once; what follows is measured.
\if not :ready
SELECT session FROM clients WHERE n = :client_id \gset
\set ready true
\endif
