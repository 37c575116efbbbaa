-- The functions are declared in src/. This file has their privileges and COMMENTs.

-- table_fence() makes triggers of this function; users' dumps name it.
CREATE FUNCTION eskit_lease.require_fence() RETURNS trigger LANGUAGE c AS 'MODULE_PATHNAME', 'eskit_lease_require_fence';

-- PUBLIC may call only the key functions, help() and the trigger's function; grant_consumer() and grant_monitor() grant
-- the rest.
GRANT USAGE ON SCHEMA eskit_lease TO PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA eskit_lease FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA eskit_lease FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA eskit_lease FROM PUBLIC;
-- The caller of a function needs no right to its type; without this a role could make objects of its own that depend on
-- the type. The row types of tables and views stay as PostgreSQL makes them: pg_dump complains of each whose privilege
-- is revoked.
REVOKE ALL ON TYPE
    eskit_lease.opened_session,
    eskit_lease.session_state,
    eskit_lease.sweep_result,
    eskit_lease.lease_answer,
    eskit_lease.lease_state,
    eskit_lease.execution_answer,
    eskit_lease._session_standing,
    eskit_lease._item_counts,
    eskit_lease._held_count
FROM PUBLIC;
GRANT EXECUTE ON FUNCTION
    eskit_lease.group_lock_key(text),
    eskit_lease.advisory_lock_id(text),
    eskit_lease.partition_for(text, integer),
    eskit_lease.partition_of_uuid(uuid, integer),
    eskit_lease.partition_assign(text, text[], text[], text),
    eskit_lease.help(text),
    -- The owner of a fenced table makes its triggers anew with each partition. The function runs only as a trigger.
    eskit_lease.require_fence()
TO PUBLIC;

COMMENT ON FUNCTION eskit_lease.group_lock_key(text) IS
'Key of a group for pg_advisory_lock: first 8 bytes of the SHA-256 of the UTF-8 text, big-endian, signed. Compatible with pyfly. NULL for NULL.';
COMMENT ON FUNCTION eskit_lease.advisory_lock_id(text) IS
'Key of a name for pg_advisory_lock: FNV-1a 64 of the UTF-8 text, signed. Compatible with eskit. NULL for NULL.';
COMMENT ON FUNCTION eskit_lease.partition_for(text, integer) IS
'Partition of a key, 0 to partitions - 1: FNV-1a 64 of the UTF-8 text, unsigned, modulo partitions. The same on every version. Raises 22023 unless partitions > 0.';
COMMENT ON FUNCTION eskit_lease.partition_of_uuid(uuid, integer) IS
'Partition of a uuid, 0 to partitions - 1: all uuids are cut into that many equal ranges, so a partition is one range of an index. For random uuids (v4); uuids in the order of time (v7) all lie in one partition. Raises 22023 unless partitions > 0.';
COMMENT ON FUNCTION eskit_lease.partition_assign(text, text[], text[], text) IS
'The new owner of each partition, one of members; NULL without members. owners: the present owner of each partition, or NULL. Shares differ by at most one. Assignors: range (neighbouring partitions to each member, in the byte order of their UTF-8 ids), sticky (as few partitions move as balance allows). group_name: sticky gives the larger shares to the first members by group_lock_key(group_name || '':'' || member), to spread many groups of few partitions; if empty, the default, to members that own so many already. The order of members does not matter. Raises 22004, and 22023 for an unknown assignor, a member given twice, more than 100000 members, or not 1 to 32768 partitions.';
COMMENT ON FUNCTION eskit_lease.session_open(text, interval, boolean, interval, boolean) IS
'Opens a session for a consumer (1 to 255 bytes). ttl: time to live between heartbeats, min_ttl to max_ttl, default eskit_lease.default_ttl. attach: the session also ends, after attach_grace, when this connection ends. takeover: ends the living sessions of this consumer and role, and inherits their leases, places in queues and partitions under new fences; what an open transaction of theirs has fenced follows at its end; their run-once attempts are in doubt, and items that they have claimed are free. Warns (01000) if it takes nothing over and a living session of this consumer is another role''s. Returns the session, a handle to keep private; trust_ms, how long from the start of the call it may be believed alive; and its revision. Raises 22004, 22023, 53400 (too many sessions), 55000 (not preloaded), 25006 (read-only or standby).';
COMMENT ON FUNCTION eskit_lease.session_heartbeat(uuid) IS
'Keeps the session, and with it every lease that it holds, for another TTL. Writes no row and no WAL. Reasons: alive, uncommitted (the transaction that opens it is another one, and has not committed; or this one, after a third of the TTL, has uncommitted work for it: autocommit is off), unconfirmed (trust_ms is 0 until synchronous standbys have confirmed that this is the primary, see eskit_lease.confirm_interval), sessions_full (since a restart or promotion no slot of eskit_lease.max_sessions is free: it keeps what it holds for trust_ms, and no longer), closing (its end is being committed), expired (for good, unless the server crashes before anything is taken from it), unknown_session. Raises 42501 for another role''s session.';
COMMENT ON FUNCTION eskit_lease.session_wait(uuid, bigint, interval) IS
'A heartbeat that answers once the revision of the session is greater than the one given, at the timeout (default and limit eskit_lease.max_wait), or in time for the next heartbeat: the later this one came, the sooner. revision: one from before the caller asked for what it waits for. Reasons: changed, timeout, heartbeat, uncommitted, unconfirmed, sessions_full (as for session_heartbeat), wait_limit (too many calls wait, or this one came after more than half of the TTL; answered at once: sleep for retry_ms), closing, expired, unknown_session.';
COMMENT ON FUNCTION eskit_lease.session_wait_many(uuid[], bigint[], interval) IS
'session_wait for 1 to 1000 sessions, each with its revision, in one call: a heartbeat of each, and a row for each, in the order given. Answers at the first news of any, at once if one has ended, and within a third of the shortest TTL; it counts as one waiting call. Reasons are those of session_wait, and alive for a session without news when another had some. Raises 42501 for another role''s session, 22004, 22023.';
COMMENT ON FUNCTION eskit_lease.session_watch(uuid, regclass) IS
'Lets session_wait answer when news of a table can be read: rows numbered by position_next, below position_horizon. A heartbeat; wait on the revision that it answers. outbox: the table that writers name, which the caller may SELECT from; it takes the place of the one before, NULL ends the watch. The watch ends with the session and with the server: call again after a restart or a take-over. The first wait may answer without news. Raises 42501, 42P01, 42809 (not a table), 22004.';
COMMENT ON FUNCTION eskit_lease.session_drain(uuid) IS
'Gives the session no new leases; its heartbeats and its work go on. False if it is not alive.';
COMMENT ON FUNCTION eskit_lease.session_detach(uuid) IS
'Ends the attachment of the session to its connection; it lives on by its heartbeats. False if it was not attached.';
COMMENT ON FUNCTION eskit_lease.session_close(uuid) IS
'Ends the session, releases all that it holds and hands it to the first in line. Waits for its own fenced transactions, under lock_timeout. False if it was not alive.';
COMMENT ON FUNCTION eskit_lease.session_sweep(integer) IS
'Does one bounded run of the background worker''s work: hands over, and removes the rows of sessions that have ended, up to max_leases leases (1 to 100000). Returns sessions ended, leases handed over, and whether there is more to do. It also finds items that were copied in, not added, and raises fences and ids above all that were given before, even after a restore of data alone. For administrators.';
COMMENT ON FUNCTION eskit_lease.notify_me(interval) IS
'Asks, for a listener, that changes be sent on the channel eskit_lease for this long from now on (duration, 0 to 1 day), where the setting eskit_lease.notify is auto. Takes effect at once, whatever becomes of this transaction; the longest ask of a database counts. Ask again in time, and after a restart of the server. Raises 22004, 22023, 25006 (a standby), 53400 (too many databases), 55000 (not preloaded).';
COMMENT ON FUNCTION eskit_lease.lease_acquire(text, uuid, boolean) IS
'Asks for the lease of a resource (1 to 255 bytes), or for any free permit of a semaphore (slot tells which), without ever waiting; counts as a heartbeat of the session. queue: take a place in the queue if refused. Reasons: granted, already_held (same fence, also if in grace), refenced (new fence after a promotion); held (holder says by whom; NULL for a semaphore), busy (another transaction is changing it), awaited (others are in line), bridged (free, but only the worker grants a bridge, to the first in line), queued (refused, and has a place, also without queue), draining, sessions_full (a session without a slot gets nothing new, see session_heartbeat), uncommitted, closing, expired, unknown_session. trust_ms: how long from the start of the call the lease may be believed held. With eskit_lease.confirm_interval it is 0 for a new grant: ask session_heartbeat after the commit. revision: from before the call looked, so that session_wait misses no grant since. Raises 42501, 22004, 22023, 42704 (not declared, where eskit_lease.declared_names is on), 42809 (a group), 53400 (too many places in queues).';
COMMENT ON FUNCTION eskit_lease.lease_acquire_many(text[], uuid) IS
'lease_acquire for up to 100000 resources in one call, without queueing: a row for each distinct resource.';
COMMENT ON FUNCTION eskit_lease.lease_renew(text, bigint) IS
'Whether the lease is still held under this fence; counts as a heartbeat of its session. holder: the consumer that has the lease. Reasons: held, refence (held, but acquire again for a fence of the new timeline), unconfirmed (held; as for session_heartbeat); released, forced (an administrator took it; told until another grant, while the view history knows), in_grace (a later holder has released it with grace, and may take it back), superseded (a greater fence was granted), expired (its session has ended), unknown. Raises 42501 for another role''s lease.';
COMMENT ON FUNCTION eskit_lease.lease_release(text, bigint, interval) IS
'Releases the lease and hands it to the first in line, with this transaction. Waits for the holder''s own fenced transactions, under lock_timeout. grace (0 to eskit_lease.max_ttl, default 0): does not wait, and lets the lease live on without its session for that long, under the same fence; the holder may finish, acquire it back, or release it for good. After that it lapses. False if it is not held under this fence. Raises 42809 for grace of a group''s partition.';
COMMENT ON FUNCTION eskit_lease.lease_release_many(text[], uuid) IS
'Releases what the session holds of up to 100000 resources: a row for each distinct resource. It goes by the session, not by fences: a consumer gives up all of them at the end of its work. lease_release gives up one grant, named by its fence.';
COMMENT ON FUNCTION eskit_lease.lease_cancel(text, uuid) IS
'Gives up the place of the session in the queue of the resource. False if it had none.';
COMMENT ON FUNCTION eskit_lease.lease_force_release(text, bigint, text) IS
'Takes the lease from its holder, whose fence is no longer valid, and hands it to the first in line. Waits for fenced transactions of the holder. why: for the server log. For administrators.';
COMMENT ON FUNCTION eskit_lease.lease_refence_all() IS
'Gives every holder in this database a new fence, as after a promotion: lease_renew answers refence, lease_acquire gives the new fence (refenced), and partitions are given out anew. Returns the first new fence. For a server that was started from a storage snapshot, which the server cannot tell from a crash. Takes effect at once, even if this transaction rolls back; what is held stays held. Writes to the server log. Raises 25006. For administrators.';
COMMENT ON FUNCTION eskit_lease.lease_declare(text, boolean) IS
'Declares a name, or with prefix also all names that begin with it. Where the setting eskit_lease.declared_names is on, only declared names are leased. Raises 42710 for a name that is declared by this function, 55P03 (another transaction is changing it), 22023, 22004.';
COMMENT ON FUNCTION eskit_lease.lease_undeclare(text, boolean) IS
'Drops the declaration of a name or a prefix; leases stay held, and sessions stay in line. Raises 42704 where there is none (with missing_ok it answers false), 42501 unless the caller declared it, 55P03 (another transaction is changing it).';
COMMENT ON FUNCTION eskit_lease.lock_acquire(text, text, interval, uuid) IS
'Asks for a lease without a session of one''s own, as ShedLock does: a private session of the owner lives for ttl and ends with the lease. Renew and release it by name and fence. The same role, owner and request get the same fence again, renewed for the first ttl. Reasons as for lease_acquire.';
COMMENT ON FUNCTION eskit_lease.fence_check(text, bigint) IS
'Asserts that the lease is held under this fence, to the end of the transaction: no other session gets it before. Call it in each transaction that writes, as a statement of its own before the data to write is read: the statement that calls a function may have an older snapshot than the check inside. A SELECT of it alone, outside a transaction block, protects nothing: a WARNING (25P01), once in a connection. Raises LF001 when the fence is no longer valid, 55P03 while the lease is changing hands, when a partition''s time to be released is over, or when the lock or row of a bridge cannot be had, 40001 when the lease was granted after this transaction''s snapshot, 42501 for another role''s lease.';
COMMENT ON FUNCTION eskit_lease.table_fence(regclass, text, text) IS
'Lets only those transactions write the table that have passed fence_check, cursor_commit or cursor_ack for the resource (of a semaphore or group: for any slot). partition_column: an integer column; the resource is a group, and each row needs the check of its own partition; TRUNCATE is refused. For the table''s owner. True if anything changed. Raises 42501, 42710 (fenced by another resource), 42809 (no table, or one in inheritance), 42703 and 42804 (column), 42704, 22023, 22004. Other writes raise LF002.';
COMMENT ON FUNCTION eskit_lease.table_unfence(regclass, boolean) IS
'Removes the fence: roles write the table again by their privileges alone. For the table''s owner. Raises 42704 for a table that is not fenced; with missing_ok it answers false. Raises 42501, 22004.';
COMMENT ON FUNCTION eskit_lease.require_fence() IS
'The trigger function of fenced tables; made by table_fence().';
COMMENT ON FUNCTION eskit_lease.semaphore_create(text, integer) IS
'Makes a semaphore: up to permits (1 to 32768) sessions hold the name at once, one permit each, by lease_acquire. Raises 42710 for a name that is declared, held or waited for, 22023, 22004.';
COMMENT ON FUNCTION eskit_lease.semaphore_resize(text, integer) IS
'Changes the number of permits. A smaller number takes effect as permits are released. Raises 42704, 42809 (a group), 42501 unless the caller made it, 55P03 (another transaction is changing it).';
COMMENT ON FUNCTION eskit_lease.semaphore_drop(text, boolean) IS
'Drops a semaphore that is neither held nor waited for. Raises 55006 otherwise, 42704 where there is none (with missing_ok it answers false), 42809, 42501, 55P03 (another transaction is changing it).';
COMMENT ON FUNCTION eskit_lease.bridge_create(text, bigint) IS
'Bridges a name to an advisory lock: workers that hold pg_advisory_lock(lock_key) and workers that hold the lease then keep each other out. The worker gives the lease to the first in line while it has the lock in share mode; fence_check shares the lock to the end of the transaction, or raises 55P03. If the worker loses the lock and gets it back, the holder gets a new fence. Several names may share one lock. Raises 42710 for a name that is declared, held or waited for, 53400 (more than 250 bridges), 22023, 22004. For administrators.';
COMMENT ON FUNCTION eskit_lease.bridge_create_row(text, regclass, text, text, text) IS
'Bridges a name to a row by which old workers lease: workers that own the row and workers that hold the lease then keep each other out. An old worker owns the row with primary key key while owner_column (text or varchar) names it and until_column (timestamptz, or timestamp in UTC, with a warning) is in the future. The worker gives the lease to the first in line while it owns the row as eskit_lease:resource:number; fence_check locks the row in share mode to the end of the transaction, or raises 55P03. If another worker has owned the row meanwhile, the holder gets a new fence. For administrators who own the table, which must be plain. Raises 42501 (not the owner), 42809 (not plain), 42703, 42P01, P0002 (no such row), 22P02 and 22003 (no such key), 55000 (published without a replica identity), 42710 for a name that is declared, held or waited for and for a row that is bridged, 55P03 (the table is locked), 53400 (more than 250 bridges), 22023, 22004.';
COMMENT ON FUNCTION eskit_lease.bridge_drop(text, boolean) IS
'Drops a bridge that is neither held nor waited for; its name is then a plain one. The bridged row is free within 30 seconds. Raises 55006 otherwise, 42704 where there is none (with missing_ok it answers false), 42809, 42501, 55P03 (another transaction is changing it). For administrators.';
COMMENT ON FUNCTION eskit_lease.group_create(text, integer, text, interval, interval) IS
'Makes a consumer group with partitions 0 to partitions - 1 (1 to 32768 of them). assignor: sticky (default; balanced with the fewest moves) or range (neighbours together). rebalance_timeout: how long an owner has to release a partition that moves to another member. settle_delay: how long the group gathers newcomers for one rebalance. Intervals are 0 to 1 day. Raises 42710 for a name that is declared, held or waited for, 22023, 22004.';
COMMENT ON FUNCTION eskit_lease.group_alter(text, text, interval, interval) IS
'Changes settings of a group; NULL, the default, keeps one. Raises 42704, 42809, 42501 unless the caller made it, 22023, 55P03 (another transaction is changing it).';
COMMENT ON FUNCTION eskit_lease.group_resize(text, integer, boolean) IS
'Changes the number of partitions, and with it the partition of each key. Raises 55006 while any partition is owned; with drain, it first asks all owners to release theirs within the rebalance_timeout. Every cursor then begins at the lowest position of all: nothing is skipped, some events may be seen again. The present number calls off a resize that is still draining. True once it is done, false while it drains. Raises 42704, 42809, 42501, 22023, 55P03 (another transaction is changing it, or its membership).';
COMMENT ON FUNCTION eskit_lease.group_drop(text, boolean) IS
'Drops a group without living members, and its cursors. Raises 55006 otherwise, 42704 where there is none (with missing_ok it answers false), 42809, 42501, 55P03 (another transaction is changing it, or its membership).';
COMMENT ON FUNCTION eskit_lease.group_join(text, uuid) IS
'Makes the session a member of the group, once; counts as its heartbeat. Partitions arrive as other members release them: see group_assignment. Returns the generation. Raises LF003 for a session that has ended, 55000 for one that drains, 42704, 42809, 42501, 55P03 (another transaction is changing or dropping the group).';
COMMENT ON FUNCTION eskit_lease.group_leave(text, uuid) IS
'Ends the membership, and releases the session''s partitions to their targets. Waits for its own fenced transactions, under lock_timeout. False if it was no member. Raises 42704, 42809, 42501, 55P03 (lock_timeout ran out, or another transaction is changing the group).';
COMMENT ON FUNCTION eskit_lease.group_assignment(text, uuid) IS
'The partitions that the session owns; counts as its heartbeat. Ask whenever the revision of the session has changed. state: owned, or revoking: finish, commit the cursor and release it with group_release, within revoke_in (NULL for a session that drains: in its own time). Raises LF003 for a session that has ended, 55000 for one that is no member.';
COMMENT ON FUNCTION eskit_lease.group_release(text, integer, bigint) IS
'Releases a partition to its target; the answer to a revocation. Waits for the owner''s own fenced transactions, under lock_timeout. False if it is not owned under this fence.';
COMMENT ON FUNCTION eskit_lease.group_release_many(text, integer[], bigint[]) IS
'group_release for many partitions, each with its fence, in one step: a row for each, and whether it was held. Also raises 22023 for arrays of different lengths and for a partition given twice.';
COMMENT ON FUNCTION eskit_lease.cursor_commit(text, integer, bigint, bigint, bigint) IS
'Moves the cursor of a partition forward to position (from 1 on), with this transaction, under the partition''s fence as fence_check does. expected: where the batch began; for READ COMMITTED, where several transactions may use one fence. False if the cursor is at position already, or beyond. Raises LF001, 55P03 and 40001 as fence_check; 40001 also if another transaction under this fence has moved the cursor since this one''s snapshot, or away from expected; 22023.';
COMMENT ON FUNCTION eskit_lease.cursor_ack(text, integer, bigint, bigint) IS
'Acknowledges one position, in any order, with this transaction and under the fence. Returns the cursor: the end of the contiguous part. Raises as cursor_commit does, and 53400 beyond 1000 separate ranges.';
COMMENT ON FUNCTION eskit_lease.cursor_position(text, integer) IS
'The cursor of a partition: all positions up to it are done; 0 if none is.';
COMMENT ON FUNCTION eskit_lease.cursor_report_head(text, integer, bigint) IS
'Reports the newest position of a partition, for the view group_lag; for producers and monitors. Never waits: false if a newer one is known, or another transaction is committing a report.';
COMMENT ON FUNCTION eskit_lease.execution_begin(text, uuid, boolean) IS
'Begins an attempt of a run-once key; counts as a heartbeat of the session. first: true for exactly one caller per attempt, who gets the fence for execution_finish and execution_fail. state: running, done (with its result), failed, or in_doubt: the session that ran it has ended. Never waits: running, without started_at, while another transaction is changing the key. The session that runs it gets its fence again. retry_in_doubt: once this attempt is in doubt, the next call begins another. revision: as of lease_acquire. Raises 40001 if, under REPEATABLE READ or SERIALIZABLE, the last attempt ended after this transaction''s snapshot, LF003 for a session that has ended, 55000 for one that drains, 42501.';
COMMENT ON FUNCTION eskit_lease.execution_finish(text, bigint, jsonb) IS
'Records the attempt under this fence as done, with this transaction, with a result of up to 1 MiB as text. False if it was finished already under this fence. Raises LF001 when another attempt has begun, this one has failed or was resolved, or its session has ended; 55P03 while another transaction is changing the key; 54000, 42501.';
COMMENT ON FUNCTION eskit_lease.execution_fail(text, bigint, text, boolean) IS
'Records the attempt under this fence as failed, with this transaction. error: the reason; its first 8 KiB are kept. retry: frees the key for another attempt; otherwise it stays failed until execution_resolve. False if it had failed already under this fence. Raises as execution_finish does.';
COMMENT ON FUNCTION eskit_lease.execution_resolve(text, text, jsonb) IS
'Decides an attempt that is in doubt or failed. outcome: done (with a result, if there is one), failed, or retry, which frees the key for another attempt. False if the attempt is neither in doubt nor failed. Writes to the server log. Raises 42704, 55P03, 22023, 54000. For administrators.';
COMMENT ON FUNCTION eskit_lease.position_next() IS
'A position for a row, as the default of a column: position bigint PRIMARY KEY DEFAULT eskit_lease.position_next(). Greater than all positions of transactions with lower ids, and than earlier ones of the same transaction. The transaction that draws it must be the one that writes it. At most 1048576 in one transaction (54000).';
COMMENT ON FUNCTION eskit_lease.position_horizon() IS
'All positions below it are settled for the calling statement: committed and visible, or never used. So WHERE position > last AND position < eskit_lease.position_horizon() ORDER BY position never skips a row. It lags behind the oldest open transaction that writes, in any database; see the view position_blockers. Works on a standby, and without preload. It may fall after a crash or position_raise(): keep the last position read, never the horizon.';
COMMENT ON FUNCTION eskit_lease.position_raise(bigint) IS
'Raises all future positions above this one (0 to 4611686018427387903), at once, even if this transaction rolls back. For rows that came with greater positions: copied from elsewhere, or kept while the extension was dropped and made again. Waits for no transaction; the horizon stays below the positions of transactions that are open now until they end. False if all future positions are above it already. Writes to the server log. Raises 22023, 22004, 25006, 53400, 55000. For administrators.';
COMMENT ON FUNCTION eskit_lease._count_held() IS 'Internal: how many leases living sessions hold; under the metrics.';
COMMENT ON FUNCTION eskit_lease._count_items(integer, text, integer) IS 'Internal: how many items a queue has, and since when one is ready; under the view queues.';
COMMENT ON FUNCTION eskit_lease._ended_at(uuid, bigint, integer) IS 'Internal: when an expired session ended; under the view leases.';
COMMENT ON FUNCTION eskit_lease._open_transaction(xid) IS 'Internal: the open transaction that is changing a row; under the view blockers.';
COMMENT ON FUNCTION eskit_lease._refusals() IS 'Internal: the latest refusals; under the view refusals.';
COMMENT ON FUNCTION eskit_lease._revoke_in(bigint, bigint, integer) IS 'Internal: how long an owner has left to release a partition; under the views.';
COMMENT ON FUNCTION eskit_lease.grant_consumer(regrole) IS 'Lets a role open sessions, use leases, locks and fences, make and use semaphores and groups, move cursors, draw and read positions, use run-once keys, make queues and work off their items, and fence its own tables. For roles that may grant that.';
COMMENT ON FUNCTION eskit_lease.grant_monitor(regrole) IS 'Lets a role read the views and stats(), report heads with cursor_report_head(), and call position_horizon(). For roles that may grant that.';
COMMENT ON FUNCTION eskit_lease.help(text) IS
'Describes a topic, a function, a view or a setting, by its COMMENT or its own description, as text of up to 100 columns. Without a topic, the default, it lists the topics. Raises 42704 for an unknown topic, with the nearest as a hint; 22023.';
COMMENT ON FUNCTION eskit_lease.stats() IS 'Counters of this database, which only grow, from since on (in seconds since 1970: the start of the server, or when the database got its entry), and the numbers of living sessions, of resources that wait for the worker, and of waiting session_wait calls. sessions_opened and so on, grants, takeovers, hand_overs, releases, executions_begun and so on, items_added and so on, revocations, forces: what transactions have committed; a restart, or a burst of prepared transactions, loses counts of prepared ones. hand_over_ms_le_10: hand-overs within 10 ms of the release or the deadline of the holder; pass_ms_le_10: runs that hand over and clean up. Each such counter includes those with a shorter time. oldest_dirty_ms: how long the oldest of the resources has waited for the worker. slots_taken, slots_of_ended: slots of eskit_lease.max_sessions that are not free, in all databases, and those among them whose sessions have ended. confirmed_ms_ago: how long ago the last acknowledged confirmation began (see eskit_lease.confirm_interval), NULL before the first. databases_in_use: entries of eskit_lease.max_databases in use, by sessions, waiting calls, or work to do; a database that is not in use gives its entry up to one that needs it, and counts from 0 when it gets one again. databases_taken: databases that have an entry, in use or not. databases_unserved: databases with work that waits for a worker. unserved_ms: how long work has been due here while PostgreSQL has no process for the worker (see max_worker_processes) and no waiting session_wait call does the work; 0 if none is.';
COMMENT ON FUNCTION eskit_lease._eligible(uuid, bigint, integer) IS 'Internal: whether a waiter may be granted to.';
COMMENT ON FUNCTION eskit_lease._require_library(text) IS 'Internal: the first step of an update; refuses it if the running library is older than this version.';
COMMENT ON FUNCTION eskit_lease._standing(uuid, bigint, integer) IS 'Internal: what shared memory says of a session; under the views.';
COMMENT ON FUNCTION eskit_lease.queue_create(text, integer, interval, text, text) IS
'Makes a queue of work items (1 to 255 bytes; queues have a name space of their own). max_attempts (1 to 1000000): how often an item is claimed before it is dead. retry_backoff (0 to 1 day): the pause before the first retry; it doubles with each further one, up to 1 hour. ordering: none, about in the order of adding; key, the items of a key one at a time and in order, each when the one before is done or dead; fifo, the same for all items of a partition. group_name: a session then claims only items of the partitions that it owns there. Raises 42710, 42704 (group), 42809, 22023, 22004.';
COMMENT ON FUNCTION eskit_lease.queue_alter(text, integer, interval) IS
'Changes settings of a queue; NULL, the default, keeps one. Raises 42704, 42501 unless the caller made it, 22023, 55P03 (another transaction is changing it).';
COMMENT ON FUNCTION eskit_lease.queue_drop(text, boolean, boolean) IS
'Drops a queue; with items, also its items, dead ones too. Without it raises 55006 if there are items. Raises 55P03 while an open transaction is changing one of them, 42704 where there is no such queue (with missing_ok it answers false), 42501.';
COMMENT ON FUNCTION eskit_lease.item_add(text, jsonb, text, timestamptz) IS
'Adds an item to a queue, with this transaction, and returns its id. payload: up to 1 MiB, and 16 MiB as text. key (1 to 255 bytes): decides the partition in a queue that is bound to a group; where the ordering is key, items of a key are given one at a time. run_at: the earliest time of a claim. Raises 42704, 22004, 22023, 54000 (payload too large), 55P03 (the queue is being dropped, or its group resized).';
COMMENT ON FUNCTION eskit_lease.item_add_many(text, jsonb[], text[], timestamptz) IS
'item_add for up to 100000 payloads, with as many keys or none: the ids, in their order.';
COMMENT ON FUNCTION eskit_lease.item_claim(text, uuid, integer) IS
'Claims up to max_items (1 to 1000) items for the session, without ever waiting; counts as its heartbeat. A row for each, none if there is nothing; all under one fence, for item_done, item_fail and item_unclaim. The answer ends with the item that brings the payloads to 16 MiB, to bound its memory; session_wait then answers changed at once. In a queue with an order at most one item of each key, or partition. A session that gets fewer is woken when there are more, or when an item is due. The claim lasts until they are finished, or the session ends. Raises LF003 for a session that has ended, 55000 for one that drains or is no member of the queue''s group, 42704, 42501, 22023, 22004.';
COMMENT ON FUNCTION eskit_lease.item_done(bigint[], bigint) IS
'Records items as done, with this transaction: call it in the one that writes the result. All or nothing: raises LF001 if any of them is no longer claimed under this fence, or the session of the claim has ended; 55P03 if another transaction is changing one of them. An id given twice counts once. Returns how many.';
COMMENT ON FUNCTION eskit_lease.item_fail(bigint, bigint, text, interval) IS
'Records that an item has failed, with an error (8192 bytes of it are kept). True: it will be tried again after retry_in, NULL for the backoff of its queue. False: that was its last attempt, and it is dead now. For one item, as each has its own error. Raises as item_done does.';
COMMENT ON FUNCTION eskit_lease.item_unclaim(bigint[], bigint) IS
'Gives items back to their places in the queue; the attempt does not count. Raises as item_done does. Returns how many.';
COMMENT ON FUNCTION eskit_lease.item_requeue(bigint) IS
'Makes a dead item ready again, as the newest of its queue, and gives it all its attempts again. For the owner of the queue. Raises 42704, 42501, 55P03.';
COMMENT ON FUNCTION eskit_lease.next_position() IS 'Deprecated: the former name of position_next().';
COMMENT ON FUNCTION eskit_lease.cursor_head(text, integer, bigint) IS 'Deprecated: the former name of cursor_report_head().';
COMMENT ON FUNCTION eskit_lease.fence_table(regclass, text, text) IS 'Deprecated: the former name of table_fence().';
COMMENT ON FUNCTION eskit_lease.unfence_table(regclass) IS 'Deprecated: the former name of table_unfence(.., missing_ok => true).';

-- Revokes what ALTER DEFAULT PRIVILEGES has granted on these objects. No other role may write these tables, and a
-- reader of them would have the handles of all sessions.
DO $$
DECLARE
    given record;
BEGIN
    FOR given IN
        SELECT 'SCHEMA' AS kind, n.oid::regnamespace::text AS name, a.grantee::regrole::text AS role
        FROM pg_namespace AS n
        CROSS JOIN LATERAL aclexplode(n.nspacl) AS a
        WHERE n.nspname = 'eskit_lease' AND a.grantee NOT IN (0, n.nspowner)
        UNION
        SELECT 'TABLE', c.oid::regclass::text, a.grantee::regrole::text
        FROM pg_class AS c
        CROSS JOIN LATERAL aclexplode(c.relacl) AS a
        WHERE c.relnamespace = 'eskit_lease'::regnamespace AND a.grantee NOT IN (0, c.relowner)
        UNION
        SELECT 'FUNCTION', p.oid::regprocedure::text, a.grantee::regrole::text
        FROM pg_proc AS p
        CROSS JOIN LATERAL aclexplode(p.proacl) AS a
        WHERE p.pronamespace = 'eskit_lease'::regnamespace AND a.grantee NOT IN (0, p.proowner)
    LOOP
        EXECUTE format('REVOKE ALL ON %s %s FROM %s', given.kind, given.name, given.role);
    END LOOP;
END
$$;
