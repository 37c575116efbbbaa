-- Tables to compare with, and the sessions that the benchmarks use.

-- The same rows by hand: columns, checks and indexes of the extension's own tables.
CREATE TABLE plain_leases (LIKE eskit_lease._leases INCLUDING ALL);
CREATE SEQUENCE plain_fences CACHE 1;

-- The heartbeat that people write by hand.
CREATE TABLE plain_sessions (n integer PRIMARY KEY, beat_at timestamptz NOT NULL);
INSERT INTO plain_sessions SELECT n, now() FROM generate_series(0, 255) AS n;

-- A lease by timestamp, as people write it by hand; this one has an owner for the whole run.
CREATE TABLE plain_locks (name text COLLATE "C" PRIMARY KEY, owner uuid NOT NULL, until timestamptz NOT NULL);
INSERT INTO plain_locks VALUES ('bench/held', gen_random_uuid(), now() + interval '1 day');

-- One session for each connection of pgbench.
CREATE TABLE clients (n integer PRIMARY KEY, session uuid NOT NULL);
INSERT INTO clients SELECT n, s.session FROM generate_series(0, 255) AS n, eskit_lease.session_open('client-' || n, '1 h') AS s;

-- A lease as outboxes in tables keep it: it is valid as long as its holder's session.
CREATE TABLE outbox_topics (topic text PRIMARY KEY, consumer uuid);
CREATE TABLE outbox_sessions (consumer uuid PRIMARY KEY, expires_at timestamptz NOT NULL);

-- What a fenced transaction writes.
CREATE TABLE work (n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, client integer NOT NULL, payload text NOT NULL);

-- The cursor that people write by hand.
CREATE TABLE plain_cursors (n integer PRIMARY KEY, position bigint NOT NULL, committed_at timestamptz NOT NULL);
INSERT INTO plain_cursors SELECT n, 0, now() FROM generate_series(0, 255) AS n;

ANALYZE;

-- The plainest queue.
CREATE TABLE plain_items (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload jsonb NOT NULL, attempt integer NOT NULL DEFAULT 0, claimed_by integer, claimed_at timestamptz);
SELECT eskit_lease.queue_create('bench') \g /dev/null
