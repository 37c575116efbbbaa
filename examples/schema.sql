-- The tables of the examples: events of accounts, in the 12 partitions of a group, and a ledger of applied events.
CREATE EXTENSION IF NOT EXISTS eskit_lease;
CREATE TABLE events (
    position   bigint PRIMARY KEY DEFAULT eskit_lease.position_next(),
    partition  integer NOT NULL GENERATED ALWAYS AS (eskit_lease.partition_for(account, 12)) STORED,
    account    text NOT NULL,
    cents      bigint NOT NULL
);
CREATE INDEX ON events (partition, position);
-- It has no unique key, which would hide events applied twice.
CREATE TABLE ledger (
    position   bigint NOT NULL,
    account    text NOT NULL,
    cents      bigint NOT NULL,
    consumer   text NOT NULL
);
SELECT eskit_lease.group_create('ledger', 12);
