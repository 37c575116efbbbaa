-- Places are numbered from 1 on. A negative place is before all others, and a later negative one before an earlier.
INSERT INTO eskit_lease._waiters (place, resource, session, queued_at) OVERRIDING SYSTEM VALUE
VALUES (-nextval('eskit_lease._waiters_place_seq'), $1, $2, clock_timestamp())
