-- This connection's partition is read once; the measurement follows.
\if not :ready
SELECT a.partition, a.fence, eskit_lease.cursor_position('bench/cursors', a.partition) AS position
FROM clients AS c, eskit_lease.group_assignment('bench/cursors', c.session) AS a WHERE c.n = :client_id \gset
\set ready true
\endif
