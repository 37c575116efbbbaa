-- The hand-over of a storm as people who know PostgreSQL would write it: tables of sessions, of leases, of waiters and
-- of history, with the indexes that the statements need, and a procedure that hands over the leases of dead sessions.
DROP TABLE IF EXISTS hand_sessions, hand_leases, hand_waiters, hand_history;
DROP SEQUENCE IF EXISTS hand_fence;
CREATE SEQUENCE hand_fence;
CREATE TABLE hand_sessions (
    session    uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    consumer   text NOT NULL,
    expires_at timestamptz NOT NULL
);
CREATE INDEX ON hand_sessions (expires_at);
CREATE TABLE hand_leases (
    resource   text COLLATE "C" PRIMARY KEY,
    session    uuid,
    fence      bigint NOT NULL DEFAULT nextval('hand_fence'),
    granted_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX ON hand_leases (session, resource) WHERE session IS NOT NULL;
CREATE TABLE hand_waiters (
    place    bigint GENERATED ALWAYS AS IDENTITY,
    resource text COLLATE "C" NOT NULL,
    session  uuid NOT NULL,
    PRIMARY KEY (resource, place)
);
CREATE INDEX ON hand_waiters (session, resource);
CREATE TABLE hand_history (
    at            timestamptz NOT NULL,
    event         text NOT NULL,
    resource      text NOT NULL,
    fence         bigint NOT NULL,
    consumer      text NOT NULL,
    next_consumer text NOT NULL,
    next_fence    bigint NOT NULL
);
CREATE INDEX ON hand_history (at);

CREATE OR REPLACE PROCEDURE prepare_storm_by_hand(sessions integer, leases integer, waiters integer) LANGUAGE sql AS $$
    INSERT INTO hand_sessions (consumer, expires_at) SELECT format('dead-%s', i), now() FROM generate_series(1, sessions) AS i;
    INSERT INTO hand_sessions (consumer, expires_at) SELECT format('waiter-%s', i), now() + interval '1 day' FROM generate_series(1, waiters) AS i;
    INSERT INTO hand_leases (resource, session)
    SELECT format('storm/by hand/%s/%s', s.consumer, i), s.session
    FROM hand_sessions AS s, generate_series(1, leases) AS i WHERE s.consumer LIKE 'dead-%';
    INSERT INTO hand_waiters (resource, session)
    SELECT l.resource, w.session
    FROM (SELECT resource, format('waiter-%s', 1 + row_number() OVER () % waiters) AS consumer FROM hand_leases) AS l
    JOIN hand_sessions AS w USING (consumer);
$$;

CREATE OR REPLACE PROCEDURE storm_by_hand() LANGUAGE plpgsql AS $$
DECLARE
    handed_over integer;
BEGIN
    LOOP
        WITH dead AS MATERIALIZED (
            SELECT session, consumer FROM hand_sessions WHERE expires_at <= now() ORDER BY expires_at LIMIT 100 FOR UPDATE SKIP LOCKED
        ), lost AS MATERIALIZED (
            SELECT l.ctid AS tid, l.resource, l.fence, d.consumer
            FROM dead AS d JOIN hand_leases AS l USING (session)
            FOR UPDATE OF l SKIP LOCKED
        ), next AS MATERIALIZED (
            SELECT lost.*, w.place, w.session, s.consumer AS next_consumer, nextval('hand_fence') AS next_fence
            FROM lost
            CROSS JOIN LATERAL (
                SELECT w.ctid AS place, w.session
                FROM hand_waiters AS w JOIN hand_sessions AS s ON s.session = w.session AND s.expires_at > now()
                WHERE w.resource = lost.resource
                ORDER BY w.place LIMIT 1
                FOR UPDATE OF w SKIP LOCKED
            ) AS w
            JOIN hand_sessions AS s ON s.session = w.session
        ), given AS (
            UPDATE hand_leases AS l SET session = n.session, fence = n.next_fence, granted_at = clock_timestamp()
            FROM next AS n WHERE l.ctid = n.tid
            RETURNING l.resource
        ), left_line AS (
            DELETE FROM hand_waiters AS w USING next AS n WHERE w.ctid = n.place
        ), recorded AS (
            INSERT INTO hand_history
            SELECT clock_timestamp(), 'expired', resource, fence, consumer, next_consumer, next_fence FROM next
        ), buried AS (
            DELETE FROM hand_sessions AS s USING dead AS d WHERE s.session = d.session
        ), told AS MATERIALIZED (
            SELECT pg_notify('by_hand', json_build_object('event', 'granted', 'resource', resource, 'consumer', next_consumer,
                                                          'fence', next_fence::text)::text)
            FROM next
        )
        SELECT count(*) + 0 * (SELECT count(*) FROM told) INTO handed_over FROM given;
        COMMIT;
        EXIT WHEN handed_over = 0;
    END LOOP;
END $$;
