-- What the examples work on: events of accounts, shared out over the 12 partitions of a group, and a ledger of what was applied.
CREATE EXTENSION IF NOT EXISTS eskit_lease;
CREATE TABLE events (
    position   bigint PRIMARY KEY DEFAULT eskit_lease.position_next(),
    partition  integer NOT NULL GENERATED ALWAYS AS (eskit_lease.partition_for(account, 12)) STORED,
    account    text NOT NULL,
    cents      bigint NOT NULL
);
CREATE INDEX ON events (partition, position);
-- Without a unique key, which would hide what is applied twice.
CREATE TABLE ledger (
    position   bigint NOT NULL,
    account    text NOT NULL,
    cents      bigint NOT NULL,
    consumer   text NOT NULL
);
SELECT eskit_lease.group_create('ledger', 12);
