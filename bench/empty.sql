-- The function of bench/empty.c.
CREATE FUNCTION bench_empty(session uuid) RETURNS eskit_lease.session_state LANGUAGE c AS :'empty', 'bench_empty';
