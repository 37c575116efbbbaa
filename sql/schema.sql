-- The rows: what must survive. Liveness is not here but in shared memory (src/liveness), so a heartbeat writes none of these.
-- Nobody but the functions writes them, and these check their arguments; a CHECK would be parsed anew for each statement.
--
-- A plain CREATE, not IF NOT EXISTS: a schema of this name that is already there belongs to somebody, who could have put
-- things into it or drop things from it. It is refused with 42P06.
CREATE SCHEMA eskit_lease;

-- CACHE 1: a fence drawn later must be greater, whichever connection draws it.
CREATE SEQUENCE eskit_lease.fence_seq AS bigint CACHE 1;

-- src/session.rs, src/claim.rs and src/queue.rs read columns by their number.
CREATE TABLE eskit_lease._sessions (
    session   uuid PRIMARY KEY,
    consumer  text COLLATE "C" NOT NULL,
    role      oid NOT NULL,
    ttl_ms    integer NOT NULL,
    boot_id   bigint NOT NULL,
    opened_at timestamptz NOT NULL,
    draining  boolean NOT NULL DEFAULT false,
    private   boolean NOT NULL DEFAULT false,
    request   uuid
);

-- No foreign key to _sessions: a lease whose session has no row is free, in every query.
CREATE TABLE eskit_lease._leases (
    resource    text COLLATE "C" NOT NULL,
    slot        integer NOT NULL,
    session     uuid,
    fence       bigint NOT NULL,
    timeline    integer NOT NULL,
    granted_at  timestamptz NOT NULL,
    released_at timestamptz,
    expired     boolean NOT NULL DEFAULT false,
    PRIMARY KEY (resource, slot)
);
CREATE INDEX _leases_session ON eskit_lease._leases (session, resource) WHERE session IS NOT NULL;
CREATE INDEX _leases_released_at ON eskit_lease._leases (released_at) WHERE session IS NULL;

-- No unique key on (resource, session): it would make one call wait for another's uncommitted place. A second place of the same
-- session is harmless; a grant takes them all away.
CREATE TABLE eskit_lease._waiters (
    place     bigint GENERATED ALWAYS AS IDENTITY,
    resource  text COLLATE "C" NOT NULL,
    session   uuid NOT NULL,
    queued_at timestamptz NOT NULL,
    PRIMARY KEY (resource, place)
);
CREATE INDEX _waiters_session ON eskit_lease._waiters (session, resource);

-- Only what a restored dump needs: with the sequence, fences go on above those already given. Sessions, leases and waiters are of
-- the incarnation of the server that they were made in.
SELECT pg_catalog.pg_extension_config_dump('eskit_lease.fence_seq', '');

COMMENT ON SCHEMA eskit_lease IS 'competing consumers: sessions, leases with fencing tokens, hand-over in milliseconds';
COMMENT ON SEQUENCE eskit_lease.fence_seq IS 'Private: source of fences; never falls.';
COMMENT ON TABLE eskit_lease._sessions IS 'Private: rows of sessions; see the view sessions.';
COMMENT ON TABLE eskit_lease._leases IS 'Private: rows of leases; see the view leases.';
COMMENT ON TABLE eskit_lease._waiters IS 'Private: places in queues; see the view waiters.';
