SELECT b.last_value, h.last_value, c.last_value, o.last_value
FROM eskit_lease.position_base AS b, eskit_lease.position_high AS h, eskit_lease.position_cluster AS c, eskit_lease.position_origin AS o
