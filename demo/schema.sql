-- An ordinary application: a stream of order events, and a projection of it. Run as the superuser.
CREATE EXTENSION eskit_lease;
CREATE ROLE shop LOGIN;
SELECT eskit_lease.grant_consumer('shop');
SELECT eskit_lease.grant_monitor('shop');

CREATE TABLE order_events (
    position  bigint PRIMARY KEY DEFAULT eskit_lease.position_next(),
    customer  integer NOT NULL,
    cents     integer NOT NULL
);
CREATE TABLE checkpoints (
    stream    text PRIMARY KEY,
    position  bigint NOT NULL
);
INSERT INTO checkpoints VALUES ('orders', 0);
CREATE TABLE customer_totals (
    customer  integer PRIMARY KEY,
    orders    bigint NOT NULL,
    cents     bigint NOT NULL
);
-- The witness: a row for each time that an event was applied. It has no unique key, which would hide events applied
-- twice.
CREATE TABLE applied (
    position  bigint NOT NULL,
    consumer  text NOT NULL,
    fence     bigint NOT NULL
);
GRANT SELECT, INSERT, UPDATE ON order_events, checkpoints, customer_totals, applied TO shop;
