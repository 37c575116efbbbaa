GRANT SELECT ON eskit_lease.bridges TO {role}
