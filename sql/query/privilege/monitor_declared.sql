GRANT SELECT ON eskit_lease.declared_names TO {role}
