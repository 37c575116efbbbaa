GRANT SELECT ON
    eskit_lease.sessions,
    eskit_lease.leases,
    eskit_lease.waiters,
    eskit_lease.semaphores,
    eskit_lease.groups,
    eskit_lease.group_members,
    eskit_lease.group_partitions,
    eskit_lease.group_lag,
    eskit_lease.queues,
    eskit_lease.items,
    eskit_lease.dead_items,
    eskit_lease.fenced_tables,
    eskit_lease.executions,
    eskit_lease.blockers,
    eskit_lease.position_blockers
TO {role};
GRANT EXECUTE ON FUNCTION
    eskit_lease.stats(),
    eskit_lease._standing(pg_catalog.uuid, bigint, integer),
    eskit_lease._revoke_in(bigint, bigint, integer),
    eskit_lease.cursor_head(pg_catalog.text, integer, bigint),
    eskit_lease.position_horizon()
TO {role}
