-- An ordinary application: payments of accounts, in 64 partitions, and the resulting balances. An account's payments
-- are in one partition, and members must apply them in order.
CREATE TABLE payments (
    partition  integer,
    position   bigint, -- from 1 in each partition, without gaps
    account    text NOT NULL,
    cents      integer NOT NULL,
    news       bigint NOT NULL DEFAULT eskit_lease.position_next(), -- wakes the members, which watch this table
    PRIMARY KEY (partition, position)
);
-- The last position of each partition. A transaction that writes a payment locks this row to its end, so that positions
-- become visible in order.
CREATE TABLE payment_heads (
    partition  integer PRIMARY KEY,
    position   bigint NOT NULL
);
INSERT INTO payment_heads SELECT generate_series(0, 63), 0;
-- The witness: a row for each time that a payment was applied. It has no unique key, which would hide payments applied
-- twice. `turn` is the order of commits in a partition: a transaction that draws the next one locks that row to its
-- end.
CREATE TABLE payments_applied (
    partition  integer NOT NULL,
    position   bigint NOT NULL,
    account    text NOT NULL,
    fence      bigint NOT NULL,
    member     text NOT NULL,
    turn       bigint NOT NULL
);
CREATE TABLE payment_turns (
    partition  integer PRIMARY KEY,
    turn       bigint NOT NULL
);
INSERT INTO payment_turns SELECT generate_series(0, 63), 0;
SELECT eskit_lease.group_create('payments', 64);
