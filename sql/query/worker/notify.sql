SELECT pg_notify('eskit_lease', n.payload) FROM unnest($1) AS n (payload)
