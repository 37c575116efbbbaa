GRANT SELECT ON eskit_lease.refusals TO {role};
GRANT EXECUTE ON FUNCTION eskit_lease._refusals() TO {role}
