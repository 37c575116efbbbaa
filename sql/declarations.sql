-- The functions of the library, written by 'make sql'.

CREATE FUNCTION eskit_lease."_count_held"() RETURNS eskit_lease._held_count
STRICT
LANGUAGE c
AS 'MODULE_PATHNAME', '_count_held_wrapper';

CREATE FUNCTION eskit_lease."_count_items"(
    "queue" INT,
    "ordering" text,
    "partitions" INT
) RETURNS eskit_lease._item_counts
STRICT
LANGUAGE c
AS 'MODULE_PATHNAME', '_count_items_wrapper';

CREATE FUNCTION eskit_lease."_eligible"(
    "session" uuid,
    "boot_id" bigint,
    "ttl_ms" INT
) RETURNS bool
STRICT
LANGUAGE c
AS 'MODULE_PATHNAME', '_eligible_wrapper';

CREATE FUNCTION eskit_lease."_ended_at"(
    "session" uuid,
    "boot_id" bigint,
    "ttl_ms" INT
) RETURNS timestamp with time zone
STRICT
LANGUAGE c
AS 'MODULE_PATHNAME', '_ended_at_wrapper';

CREATE FUNCTION eskit_lease."_open_transaction"(
    "xid" xid
) RETURNS xid
STRICT
LANGUAGE c
AS 'MODULE_PATHNAME', '_open_transaction_wrapper';

CREATE FUNCTION eskit_lease."_refusals"() RETURNS TABLE (
    "resource" text,
    "consumer" text,
    "reason" text,
    "holder" text,
    "refused_at" timestamp with time zone
)
STRICT
LANGUAGE c
AS 'MODULE_PATHNAME', '_refusals_wrapper';

CREATE FUNCTION eskit_lease."_require_library"(
    "version" text
) RETURNS VOID
STRICT
LANGUAGE c
AS 'MODULE_PATHNAME', '_require_library_wrapper';

CREATE FUNCTION eskit_lease."_revoke_in"(
    "revoke_at" bigint,
    "boot_id" bigint,
    "rebalance_timeout_ms" INT
) RETURNS interval
STRICT
LANGUAGE c
AS 'MODULE_PATHNAME', '_revoke_in_wrapper';

CREATE FUNCTION eskit_lease."_standing"(
    "session" uuid,
    "boot_id" bigint,
    "ttl_ms" INT
) RETURNS eskit_lease._session_standing
STRICT
LANGUAGE c
AS 'MODULE_PATHNAME', '_standing_wrapper';

CREATE FUNCTION eskit_lease."advisory_lock_id"(
    "name" text
) RETURNS bigint
IMMUTABLE STRICT PARALLEL SAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'advisory_lock_id_wrapper';

CREATE FUNCTION eskit_lease."bridge_create"(
    "resource" text,
    "lock_key" bigint
) RETURNS VOID
LANGUAGE c
AS 'MODULE_PATHNAME', 'bridge_create_wrapper';

CREATE FUNCTION eskit_lease."bridge_create_row"(
    "resource" text,
    "target" regclass,
    "key" text,
    "owner_column" text,
    "until_column" text
) RETURNS VOID
LANGUAGE c
AS 'MODULE_PATHNAME', 'bridge_create_row_wrapper';

CREATE FUNCTION eskit_lease."bridge_drop"(
    "resource" text,
    "missing_ok" bool DEFAULT false
) RETURNS bool
LANGUAGE c
AS 'MODULE_PATHNAME', 'bridge_drop_if_wrapper';

CREATE FUNCTION eskit_lease."cursor_ack"(
    "group_name" text,
    "partition" INT,
    "position" bigint,
    "fence" bigint
) RETURNS bigint
LANGUAGE c
AS 'MODULE_PATHNAME', 'cursor_ack_wrapper';

CREATE FUNCTION eskit_lease."cursor_commit"(
    "group_name" text,
    "partition" INT,
    "position" bigint,
    "fence" bigint,
    "expected" bigint DEFAULT NULL
) RETURNS bool
LANGUAGE c
AS 'MODULE_PATHNAME', 'cursor_commit_from_wrapper';

CREATE FUNCTION eskit_lease."cursor_head"(
    "group_name" text,
    "partition" INT,
    "position" bigint
) RETURNS bool
LANGUAGE c
AS 'MODULE_PATHNAME', 'former_cursor_head_wrapper';

CREATE FUNCTION eskit_lease."cursor_position"(
    "group_name" text,
    "partition" INT
) RETURNS bigint
LANGUAGE c
AS 'MODULE_PATHNAME', 'cursor_position_wrapper';

CREATE FUNCTION eskit_lease."cursor_report_head"(
    "group_name" text,
    "partition" INT,
    "position" bigint
) RETURNS bool
LANGUAGE c
AS 'MODULE_PATHNAME', 'cursor_head_wrapper';

CREATE FUNCTION eskit_lease."execution_begin"(
    "key" text,
    "session" uuid,
    "retry_in_doubt" bool DEFAULT false
) RETURNS eskit_lease.execution_answer
LANGUAGE c
AS 'MODULE_PATHNAME', 'execution_begin_wrapper';

CREATE FUNCTION eskit_lease."execution_fail"(
    "key" text,
    "fence" bigint,
    "error" text,
    "retry" bool DEFAULT false
) RETURNS bool
LANGUAGE c
AS 'MODULE_PATHNAME', 'execution_fail_wrapper';

CREATE FUNCTION eskit_lease."execution_finish"(
    "key" text,
    "fence" bigint,
    "result" jsonb DEFAULT NULL
) RETURNS bool
LANGUAGE c
AS 'MODULE_PATHNAME', 'execution_finish_wrapper';

CREATE FUNCTION eskit_lease."execution_resolve"(
    "key" text,
    "outcome" text,
    "result" jsonb DEFAULT NULL
) RETURNS bool
LANGUAGE c
AS 'MODULE_PATHNAME', 'execution_resolve_wrapper';

CREATE FUNCTION eskit_lease."fence_check"(
    "resource" text,
    "fence" bigint
) RETURNS VOID
LANGUAGE c
AS 'MODULE_PATHNAME', 'fence_check_wrapper';

CREATE FUNCTION eskit_lease."fence_table"(
    "target" regclass,
    "resource" text,
    "partition_column" text DEFAULT NULL
) RETURNS bool
LANGUAGE c
AS 'MODULE_PATHNAME', 'former_fence_table_wrapper';

CREATE FUNCTION eskit_lease."grant_consumer"(
    "role" regrole
) RETURNS VOID
LANGUAGE c
AS 'MODULE_PATHNAME', 'grant_consumer_wrapper';

CREATE FUNCTION eskit_lease."grant_monitor"(
    "role" regrole
) RETURNS VOID
LANGUAGE c
AS 'MODULE_PATHNAME', 'grant_monitor_wrapper';

CREATE FUNCTION eskit_lease."group_alter"(
    "group_name" text,
    "assignor" text DEFAULT NULL,
    "rebalance_timeout" interval DEFAULT NULL,
    "settle_delay" interval DEFAULT NULL
) RETURNS VOID
LANGUAGE c
AS 'MODULE_PATHNAME', 'group_alter_wrapper';

CREATE FUNCTION eskit_lease."group_assignment"(
    "group_name" text,
    "session" uuid
) RETURNS TABLE (
    "partition" INT,
    "fence" bigint,
    "state" text,
    "revoke_in" interval
)
LANGUAGE c
AS 'MODULE_PATHNAME', 'group_assignment_wrapper';

CREATE FUNCTION eskit_lease."group_create"(
    "group_name" text,
    "partitions" INT,
    "assignor" text DEFAULT 'sticky',
    "rebalance_timeout" interval DEFAULT '30 s',
    "settle_delay" interval DEFAULT '0'
) RETURNS VOID
LANGUAGE c
AS 'MODULE_PATHNAME', 'group_create_wrapper';

CREATE FUNCTION eskit_lease."group_drop"(
    "group_name" text,
    "missing_ok" bool DEFAULT false
) RETURNS bool
LANGUAGE c
AS 'MODULE_PATHNAME', 'group_drop_if_wrapper';

CREATE FUNCTION eskit_lease."group_join"(
    "group_name" text,
    "session" uuid
) RETURNS bigint
LANGUAGE c
AS 'MODULE_PATHNAME', 'group_join_wrapper';

CREATE FUNCTION eskit_lease."group_leave"(
    "group_name" text,
    "session" uuid
) RETURNS bool
LANGUAGE c
AS 'MODULE_PATHNAME', 'group_leave_wrapper';

CREATE FUNCTION eskit_lease."group_lock_key"(
    "group_name" text
) RETURNS bigint
IMMUTABLE STRICT PARALLEL SAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'group_lock_key_wrapper';

CREATE FUNCTION eskit_lease."group_release"(
    "group_name" text,
    "partition" INT,
    "fence" bigint
) RETURNS bool
LANGUAGE c
AS 'MODULE_PATHNAME', 'group_release_wrapper';

CREATE FUNCTION eskit_lease."group_release_many"(
    "group_name" text,
    "partitions" INT[],
    "fences" bigint[]
) RETURNS TABLE (
    "partition" INT,
    "released" bool
)
LANGUAGE c
AS 'MODULE_PATHNAME', 'group_release_many_wrapper';

CREATE FUNCTION eskit_lease."group_resize"(
    "group_name" text,
    "partitions" INT,
    "drain" bool DEFAULT false
) RETURNS bool
LANGUAGE c
AS 'MODULE_PATHNAME', 'group_resize_wrapper';

CREATE FUNCTION eskit_lease."help"(
    "topic" text DEFAULT NULL
) RETURNS text
STABLE
LANGUAGE c
AS 'MODULE_PATHNAME', 'help_wrapper';

CREATE FUNCTION eskit_lease."item_add"(
    "queue" text,
    "payload" jsonb,
    "key" text DEFAULT NULL,
    "run_at" timestamp with time zone DEFAULT NULL
) RETURNS bigint
LANGUAGE c
AS 'MODULE_PATHNAME', 'item_add_wrapper';

CREATE FUNCTION eskit_lease."item_add_many"(
    "queue" text,
    "payloads" jsonb[],
    "keys" text[] DEFAULT NULL,
    "run_at" timestamp with time zone DEFAULT NULL
) RETURNS bigint[]
LANGUAGE c
AS 'MODULE_PATHNAME', 'item_add_many_wrapper';

CREATE FUNCTION eskit_lease."item_claim"(
    "queue" text,
    "session" uuid,
    "max_items" INT DEFAULT 1
) RETURNS TABLE (
    "id" bigint,
    "key" text,
    "payload" jsonb,
    "attempt" INT,
    "fence" bigint
)
LANGUAGE c
AS 'MODULE_PATHNAME', 'item_claim_wrapper';

CREATE FUNCTION eskit_lease."item_done"(
    "ids" bigint[],
    "fence" bigint
) RETURNS INT
LANGUAGE c
AS 'MODULE_PATHNAME', 'item_done_wrapper';

CREATE FUNCTION eskit_lease."item_fail"(
    "id" bigint,
    "fence" bigint,
    "error" text,
    "retry_in" interval DEFAULT NULL
) RETURNS bool
LANGUAGE c
AS 'MODULE_PATHNAME', 'item_fail_wrapper';

CREATE FUNCTION eskit_lease."item_requeue"(
    "id" bigint
) RETURNS VOID
LANGUAGE c
AS 'MODULE_PATHNAME', 'item_requeue_wrapper';

CREATE FUNCTION eskit_lease."item_unclaim"(
    "ids" bigint[],
    "fence" bigint
) RETURNS INT
LANGUAGE c
AS 'MODULE_PATHNAME', 'item_unclaim_wrapper';

CREATE FUNCTION eskit_lease."lease_acquire"(
    "resource" text,
    "session" uuid,
    "queue" bool DEFAULT false
) RETURNS eskit_lease.lease_answer
LANGUAGE c
AS 'MODULE_PATHNAME', 'lease_acquire_wrapper';

CREATE FUNCTION eskit_lease."lease_acquire_many"(
    "resources" text[],
    "session" uuid
) RETURNS TABLE (
    "resource" text,
    "granted" bool,
    "fence" bigint,
    "slot" INT,
    "holder" text,
    "trust_ms" INT,
    "reason" text
)
LANGUAGE c
AS 'MODULE_PATHNAME', 'lease_acquire_many_wrapper';

CREATE FUNCTION eskit_lease."lease_cancel"(
    "resource" text,
    "session" uuid
) RETURNS bool
LANGUAGE c
AS 'MODULE_PATHNAME', 'lease_cancel_wrapper';

CREATE FUNCTION eskit_lease."lease_declare"(
    "name" text,
    "prefix" bool DEFAULT false
) RETURNS VOID
LANGUAGE c
AS 'MODULE_PATHNAME', 'lease_declare_wrapper';

CREATE FUNCTION eskit_lease."lease_force_release"(
    "resource" text,
    "fence" bigint,
    "why" text
) RETURNS bool
LANGUAGE c
AS 'MODULE_PATHNAME', 'lease_force_release_wrapper';

CREATE FUNCTION eskit_lease."lease_refence_all"() RETURNS bigint
STRICT
LANGUAGE c
AS 'MODULE_PATHNAME', 'lease_refence_all_wrapper';

CREATE FUNCTION eskit_lease."lease_release"(
    "resource" text,
    "fence" bigint,
    "grace" interval DEFAULT '0'
) RETURNS bool
LANGUAGE c
AS 'MODULE_PATHNAME', 'lease_release_wrapper';

CREATE FUNCTION eskit_lease."lease_release_many"(
    "resources" text[],
    "session" uuid
) RETURNS TABLE (
    "resource" text,
    "released" bool
)
LANGUAGE c
AS 'MODULE_PATHNAME', 'lease_release_many_wrapper';

CREATE FUNCTION eskit_lease."lease_renew"(
    "resource" text,
    "fence" bigint
) RETURNS eskit_lease.lease_state
LANGUAGE c
AS 'MODULE_PATHNAME', 'lease_renew_wrapper';

CREATE FUNCTION eskit_lease."lease_undeclare"(
    "name" text,
    "missing_ok" bool DEFAULT false
) RETURNS bool
LANGUAGE c
AS 'MODULE_PATHNAME', 'lease_undeclare_wrapper';

CREATE FUNCTION eskit_lease."lock_acquire"(
    "name" text,
    "owner" text,
    "ttl" interval,
    "request" uuid DEFAULT NULL
) RETURNS eskit_lease.lease_answer
LANGUAGE c
AS 'MODULE_PATHNAME', 'lock_acquire_wrapper';

CREATE FUNCTION eskit_lease."next_position"() RETURNS bigint
STRICT
LANGUAGE c
AS 'MODULE_PATHNAME', 'former_next_position_wrapper';

CREATE FUNCTION eskit_lease."notify_me"(
    "duration" interval
) RETURNS VOID
LANGUAGE c
AS 'MODULE_PATHNAME', 'notify_me_wrapper';

CREATE FUNCTION eskit_lease."partition_assign"(
    "assignor" text,
    "members" text[],
    "owners" text[],
    "group_name" text DEFAULT ''
) RETURNS text[]
IMMUTABLE PARALLEL SAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'partition_assign_in_wrapper';

CREATE FUNCTION eskit_lease."partition_for"(
    "key" text,
    "partitions" INT
) RETURNS INT
IMMUTABLE STRICT PARALLEL SAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'partition_for_wrapper';

CREATE FUNCTION eskit_lease."partition_of_uuid"(
    "id" uuid,
    "partitions" INT
) RETURNS INT
IMMUTABLE STRICT PARALLEL SAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'partition_of_uuid_wrapper';

CREATE FUNCTION eskit_lease."position_horizon"() RETURNS bigint
STRICT STABLE
LANGUAGE c
AS 'MODULE_PATHNAME', 'position_horizon_wrapper';

CREATE FUNCTION eskit_lease."position_next"() RETURNS bigint
STRICT
LANGUAGE c
AS 'MODULE_PATHNAME', 'next_position_wrapper';

CREATE FUNCTION eskit_lease."position_raise"(
    "above" bigint
) RETURNS bool
LANGUAGE c
AS 'MODULE_PATHNAME', 'position_raise_wrapper';

CREATE FUNCTION eskit_lease."queue_alter"(
    "queue" text,
    "max_attempts" INT DEFAULT NULL,
    "retry_backoff" interval DEFAULT NULL
) RETURNS VOID
LANGUAGE c
AS 'MODULE_PATHNAME', 'queue_alter_wrapper';

CREATE FUNCTION eskit_lease."queue_create"(
    "queue" text,
    "max_attempts" INT DEFAULT 20,
    "retry_backoff" interval DEFAULT '1 s',
    "ordering" text DEFAULT 'none',
    "group_name" text DEFAULT NULL
) RETURNS VOID
LANGUAGE c
AS 'MODULE_PATHNAME', 'queue_create_wrapper';

CREATE FUNCTION eskit_lease."queue_drop"(
    "queue" text,
    "items" bool DEFAULT false,
    "missing_ok" bool DEFAULT false
) RETURNS bool
LANGUAGE c
AS 'MODULE_PATHNAME', 'queue_drop_if_wrapper';

CREATE FUNCTION eskit_lease."semaphore_create"(
    "name" text,
    "permits" INT
) RETURNS VOID
LANGUAGE c
AS 'MODULE_PATHNAME', 'semaphore_create_wrapper';

CREATE FUNCTION eskit_lease."semaphore_drop"(
    "name" text,
    "missing_ok" bool DEFAULT false
) RETURNS bool
LANGUAGE c
AS 'MODULE_PATHNAME', 'semaphore_drop_if_wrapper';

CREATE FUNCTION eskit_lease."semaphore_resize"(
    "name" text,
    "permits" INT
) RETURNS VOID
LANGUAGE c
AS 'MODULE_PATHNAME', 'semaphore_resize_wrapper';

CREATE FUNCTION eskit_lease."session_close"(
    "session" uuid
) RETURNS bool
LANGUAGE c
AS 'MODULE_PATHNAME', 'session_close_wrapper';

CREATE FUNCTION eskit_lease."session_detach"(
    "session" uuid
) RETURNS bool
LANGUAGE c
AS 'MODULE_PATHNAME', 'session_detach_wrapper';

CREATE FUNCTION eskit_lease."session_drain"(
    "session" uuid
) RETURNS bool
LANGUAGE c
AS 'MODULE_PATHNAME', 'session_drain_wrapper';

CREATE FUNCTION eskit_lease."session_heartbeat"(
    "session" uuid
) RETURNS eskit_lease.session_state
LANGUAGE c
AS 'MODULE_PATHNAME', 'session_heartbeat_wrapper';

CREATE FUNCTION eskit_lease."session_open"(
    "consumer" text,
    "ttl" interval DEFAULT NULL,
    "attach" bool DEFAULT false,
    "attach_grace" interval DEFAULT '0',
    "takeover" bool DEFAULT false
) RETURNS eskit_lease.opened_session
LANGUAGE c
AS 'MODULE_PATHNAME', 'session_open_wrapper';

CREATE FUNCTION eskit_lease."session_sweep"(
    "max_leases" INT DEFAULT 1000
) RETURNS eskit_lease.sweep_result
LANGUAGE c
AS 'MODULE_PATHNAME', 'session_sweep_wrapper';

CREATE FUNCTION eskit_lease."session_wait"(
    "session" uuid,
    "revision" bigint,
    "timeout" interval DEFAULT NULL
) RETURNS eskit_lease.session_state
LANGUAGE c
AS 'MODULE_PATHNAME', 'session_wait_wrapper';

CREATE FUNCTION eskit_lease."session_wait_many"(
    "sessions" uuid[],
    "revisions" bigint[],
    "timeout" interval DEFAULT NULL
) RETURNS TABLE (
    "session" uuid,
    "alive" bool,
    "trust_ms" INT,
    "expires_at" timestamp with time zone,
    "revision" bigint,
    "reason" text,
    "retry_ms" INT
)
LANGUAGE c
AS 'MODULE_PATHNAME', 'session_wait_many_wrapper';

CREATE FUNCTION eskit_lease."session_watch"(
    "session" uuid,
    "outbox" regclass
) RETURNS eskit_lease.session_state
LANGUAGE c
AS 'MODULE_PATHNAME', 'session_watch_wrapper';

CREATE FUNCTION eskit_lease."stats"() RETURNS TABLE (
    "name" text,
    "value" bigint
)
STRICT
LANGUAGE c
AS 'MODULE_PATHNAME', 'stats_wrapper';

CREATE FUNCTION eskit_lease."table_fence"(
    "target" regclass,
    "resource" text,
    "partition_column" text DEFAULT NULL
) RETURNS bool
LANGUAGE c
AS 'MODULE_PATHNAME', 'fence_table_wrapper';

CREATE FUNCTION eskit_lease."table_unfence"(
    "target" regclass,
    "missing_ok" bool DEFAULT false
) RETURNS bool
LANGUAGE c
AS 'MODULE_PATHNAME', 'table_unfence_wrapper';

CREATE FUNCTION eskit_lease."unfence_table"(
    "target" regclass
) RETURNS bool
LANGUAGE c
AS 'MODULE_PATHNAME', 'former_unfence_table_wrapper';
