-- The partition of this connection is read once; what follows is measured.
\if not :ready
SELECT a.partition, a.fence, eskit_lease.cursor_position('bench/cursors', a.partition) AS position
FROM clients AS c, eskit_lease.group_assignment('bench/cursors', c.session) AS a WHERE c.n = :client_id \gset
\set ready true
\endif
