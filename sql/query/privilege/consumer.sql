GRANT EXECUTE ON FUNCTION
    eskit_lease.session_open(pg_catalog.text, pg_catalog.interval, boolean, pg_catalog.interval),
    eskit_lease.session_heartbeat(pg_catalog.uuid),
    eskit_lease.session_wait(pg_catalog.uuid, bigint, pg_catalog.interval),
    eskit_lease.session_drain(pg_catalog.uuid),
    eskit_lease.session_detach(pg_catalog.uuid),
    eskit_lease.session_close(pg_catalog.uuid),
    eskit_lease.lease_acquire(pg_catalog.text, pg_catalog.uuid, boolean),
    eskit_lease.lease_acquire_many(pg_catalog.text[], pg_catalog.uuid),
    eskit_lease.lease_renew(pg_catalog.text, bigint),
    eskit_lease.lease_release(pg_catalog.text, bigint),
    eskit_lease.lease_release_many(pg_catalog.text[], pg_catalog.uuid),
    eskit_lease.lease_cancel(pg_catalog.text, pg_catalog.uuid),
    eskit_lease.lock_acquire(pg_catalog.text, pg_catalog.text, pg_catalog.interval, pg_catalog.uuid),
    eskit_lease.fence_check(pg_catalog.text, bigint)
TO {role}
