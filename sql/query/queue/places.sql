SELECT w.resource, w.session, w.ctid
FROM unnest($1, $2) AS n (resource, session)
JOIN eskit_lease._waiters AS w ON w.session = n.session AND w.resource = n.resource
