-- The functions are declared in src/; here is who may call them, and what each is for.

-- Nothing for PUBLIC but the key functions; grant_consumer() and grant_monitor() hand out the rest.
GRANT USAGE ON SCHEMA eskit_lease TO PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA eskit_lease FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA eskit_lease FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA eskit_lease FROM PUBLIC;
GRANT EXECUTE ON FUNCTION
    eskit_lease.group_lock_key(text),
    eskit_lease.advisory_lock_id(text),
    eskit_lease.partition_for(text, integer)
TO PUBLIC;

COMMENT ON FUNCTION eskit_lease.group_lock_key(text) IS
'Key of a group for pg_advisory_lock: first 8 bytes of the SHA-256 of the UTF-8 text, big-endian, signed. Compatible with pyfly. NULL for NULL.';
COMMENT ON FUNCTION eskit_lease.advisory_lock_id(text) IS
'Key of a name for pg_advisory_lock: FNV-1a 64 of the UTF-8 text, signed. Compatible with eskit. NULL for NULL.';
COMMENT ON FUNCTION eskit_lease.partition_for(text, integer) IS
'Partition of a key, 0 to partitions - 1: FNV-1a 64 of the UTF-8 text, unsigned, modulo partitions. The same on every version. Raises 22023 unless partitions > 0.';
COMMENT ON FUNCTION eskit_lease.session_open(text, interval, boolean, interval) IS
'Opens a session for a consumer (1 to 255 bytes). ttl: time to live between heartbeats, min_ttl to max_ttl, default eskit_lease.default_ttl. attach: the session also ends, after attach_grace, when this connection ends. Returns the session, a handle to keep private; trust_ms, how long from the start of the call it may be believed alive; and its revision. Raises 22004, 22023, 53400 (too many sessions), 55000 (not preloaded), 25006 (read-only or standby).';
COMMENT ON FUNCTION eskit_lease.session_heartbeat(uuid) IS
'Keeps the session, and with it every lease that it holds, for another TTL. Writes no row and no WAL. Reasons: alive, closing (its end is being committed), expired (for ever), unknown_session. Raises 42501 for another role''s session.';
COMMENT ON FUNCTION eskit_lease.session_wait(uuid, bigint, interval) IS
'A heartbeat that answers once the revision of the session is greater than the one given, at the timeout (default and limit eskit_lease.max_wait), or in time for the next heartbeat. Reasons: changed, timeout, heartbeat, wait_limit (too many waiting calls, answered at once), closing, expired, unknown_session.';
COMMENT ON FUNCTION eskit_lease.session_drain(uuid) IS
'No new leases for the session, while its heartbeats and its work go on. False if it is not alive.';
COMMENT ON FUNCTION eskit_lease.session_detach(uuid) IS
'Ends the attachment of the session to its connection; it lives on by its heartbeats. False if it was not attached.';
COMMENT ON FUNCTION eskit_lease.session_close(uuid) IS
'Ends the session, releases all that it holds and hands it to the first in line. Waits for its own fenced transactions, under lock_timeout. False if it was not alive.';
COMMENT ON FUNCTION eskit_lease.session_sweep(integer) IS
'One bounded pass of what the background worker does: hands over, and takes away the rows of sessions that have ended, up to max_leases leases (1 to 100000). Returns sessions ended, leases handed over, and whether there is more to do. For administrators.';
COMMENT ON FUNCTION eskit_lease.lease_acquire(text, uuid, boolean) IS
'Asks for the lease of a resource (1 to 255 bytes) without ever waiting; counts as a heartbeat of the session. queue: take a place in the queue if refused. Reasons: granted, already_held (same fence), refenced (new fence after a promotion); held (holder says by whom), busy (somebody is in the middle of it), awaited (others are in line), queued, draining, closing, expired, unknown_session. trust_ms: how long from the start of the call the lease may be believed held. Raises 42501, 22004, 22023, 53400 (too many places in queues).';
COMMENT ON FUNCTION eskit_lease.lease_acquire_many(text[], uuid) IS
'lease_acquire for up to 100000 resources in one call, without queueing: a row for each distinct resource.';
COMMENT ON FUNCTION eskit_lease.lease_renew(text, bigint) IS
'Whether the lease is still held under this fence; counts as a heartbeat of its session. Reasons: held, refence (held, but acquire again for a fence of the new timeline); expired, released, superseded (with by whom), unknown. Raises 42501 for another role''s lease.';
COMMENT ON FUNCTION eskit_lease.lease_release(text, bigint) IS
'Releases the lease and hands it to the first in line, with this transaction. Waits for the holder''s own fenced transactions, under lock_timeout. False if it is not held under this fence.';
COMMENT ON FUNCTION eskit_lease.lease_release_many(text[], uuid) IS
'Releases what the session holds of up to 100000 resources: a row for each distinct resource.';
COMMENT ON FUNCTION eskit_lease.lease_cancel(text, uuid) IS
'Gives up the place of the session in the queue of the resource. False if it had none.';
COMMENT ON FUNCTION eskit_lease.lease_force_release(text, bigint, text) IS
'Takes the lease from its holder, whose fence is no longer valid, and hands it to the first in line. Waits for fenced transactions of the holder. why goes to the server log. For administrators.';
COMMENT ON FUNCTION eskit_lease.lock_acquire(text, text, interval, uuid) IS
'Asks for a lease without a session of one''s own, as ShedLock does: a private session of the owner lives for ttl and ends with the lease. Renew and release by name and fence. Asked again with the same role, owner and request: the same fence. Reasons as for lease_acquire.';
COMMENT ON FUNCTION eskit_lease.fence_check(text, bigint) IS
'Asserts that the lease is held under this fence, to the end of the transaction: nobody else gets it before. Call it in each transaction that writes. Raises LF001 when the fence is no longer valid, 55P03 while the lease is changing hands, 40001 when it was granted after what this transaction reads, 42501 for another role''s lease.';
COMMENT ON FUNCTION eskit_lease.grant_consumer(regrole) IS 'Lets a role open sessions and use leases. For whoever may grant that.';
COMMENT ON FUNCTION eskit_lease.grant_monitor(regrole) IS 'Lets a role read the views and stats(). For whoever may grant that.';
COMMENT ON FUNCTION eskit_lease.stats() IS 'Counters of this database since the server started (they grow), and the numbers of living sessions, of resources that wait for the worker, and of waiting session_wait calls.';
COMMENT ON FUNCTION eskit_lease._eligible(uuid, bigint, integer) IS 'Internal: whether a waiter may be granted to.';
COMMENT ON FUNCTION eskit_lease._standing(uuid, bigint, integer) IS 'Internal: what shared memory says of a session; under the views.';
