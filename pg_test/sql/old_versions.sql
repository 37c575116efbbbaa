-- A prepared transaction that is left open keeps every version of a row. A cursor is found by its last version, so a
-- move costs as much as before. The test counts what is read, and measures no time.
\i pg_test/sql/include/worker_off.psql
SELECT group_create('parts', 1);
SELECT session AS a FROM session_open('a', '1 hour') \gset
SELECT group_join('parts', :'a') > 0 AS joined;
SELECT fence AS f FROM group_assignment('parts', :'a') \gset
SELECT cursor_commit('parts', 0, 1, :f);
BEGIN;
SELECT pg_current_xact_id() IS NOT NULL AS writes;
PREPARE TRANSACTION 'forgotten';
CREATE PROCEDURE pg_temp.go_on(fence bigint, first bigint, last bigint) LANGUAGE plpgsql AS $$
BEGIN
    FOR n IN first..last LOOP
        PERFORM eskit_lease.cursor_commit('parts', 0, n, fence);
        COMMIT;
        PERFORM eskit_lease.cursor_report_head('parts', 0, n);
        COMMIT;
    END LOOP;
END
$$;
CREATE FUNCTION pg_temp.rows_read() RETURNS bigint LANGUAGE sql AS $$
    SELECT pg_stat_get_xact_tuples_fetched('eskit_lease._cursors_pkey'::regclass) + pg_stat_get_xact_tuples_fetched('eskit_lease._heads_pkey'::regclass)
$$;
CALL pg_temp.go_on(:f, 2, 1000);
BEGIN;
SELECT pg_temp.rows_read() AS before \gset
SELECT cursor_position('parts', 0), cursor_commit('parts', 0, 1001, :f), cursor_report_head('parts', 0, 1001);
SELECT pg_temp.rows_read() - :before < 1000 AS few;
COMMIT;
SELECT cursor_position('parts', 0);
ROLLBACK PREPARED 'forgotten';
SELECT session_close(:'a');
SELECT group_drop('parts');
SELECT count(*) FROM sessions;
\i pg_test/sql/include/worker_on.psql
