-- Places are numbered from 1 on; a negative one is before all others, and the later one before the earlier.
INSERT INTO eskit_lease._waiters (place, resource, session, queued_at) OVERRIDING SYSTEM VALUE
VALUES (-nextval('eskit_lease._waiters_place_seq'), $1, $2, clock_timestamp())
