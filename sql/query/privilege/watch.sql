GRANT SELECT ON
    eskit_lease.history,
    eskit_lease.flapping,
    eskit_lease.top
TO {role}
