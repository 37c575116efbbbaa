-- From 0.2.0 to 0.3.0. Refused where the server still runs the library of 0.2.0.
SELECT eskit_lease._require_library('0.3.0');

-- cursor_commit has another argument. Its privileges stay, and stay such as pg_dump dumps: what a script grants would count as a part of the
-- extension (pg_init_privs). What of the user's depends on it is told by DROP FUNCTION, which is then refused.
DO $$
DECLARE
    former CONSTANT oid = 'eskit_lease.cursor_commit(text, integer, bigint, bigint)'::pg_catalog.regprocedure;
    acl pg_catalog.aclitem[];
    initial pg_catalog.aclitem[];
    granted record;
BEGIN
    SELECT p.proacl INTO acl FROM pg_catalog.pg_proc AS p WHERE p.oid OPERATOR(pg_catalog.=) former;
    SELECT i.initprivs INTO initial FROM pg_catalog.pg_init_privs AS i
    WHERE i.objoid OPERATOR(pg_catalog.=) former AND i.classoid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass;
    DROP FUNCTION eskit_lease.cursor_commit(text, integer, bigint, bigint);
    CREATE FUNCTION eskit_lease.cursor_commit(group_name text, partition integer, "position" bigint, fence bigint, expected bigint DEFAULT NULL) RETURNS boolean LANGUAGE c AS 'MODULE_PATHNAME', 'cursor_commit_from_wrapper';
    REVOKE ALL ON FUNCTION eskit_lease.cursor_commit(text, integer, bigint, bigint, bigint) FROM PUBLIC;
    FOR granted IN
        SELECT a.grantee, a.is_grantable, r.rolname FROM pg_catalog.aclexplode(acl) AS a
        LEFT JOIN pg_catalog.pg_roles AS r ON r.oid OPERATOR(pg_catalog.=) a.grantee
    LOOP
        EXECUTE pg_catalog.format('GRANT EXECUTE ON FUNCTION eskit_lease.cursor_commit(text, integer, bigint, bigint, bigint) TO %s%s',
            CASE WHEN granted.grantee OPERATOR(pg_catalog.=) 0::oid THEN 'PUBLIC' ELSE pg_catalog.quote_ident(granted.rolname) END,
            CASE WHEN granted.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END);
    END LOOP;
    UPDATE pg_catalog.pg_init_privs AS i SET initprivs = initial
    WHERE i.objoid OPERATOR(pg_catalog.=) 'eskit_lease.cursor_commit(text, integer, bigint, bigint, bigint)'::pg_catalog.regprocedure
      AND i.classoid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass;
END $$;
COMMENT ON FUNCTION eskit_lease.cursor_commit(text, integer, bigint, bigint, bigint) IS
'Moves the cursor of a partition forward to position (from 1 on), with this transaction, under the partition''s fence as fence_check does. expected: where the batch began, for transactions at READ COMMITTED of which several may use one fence. False if the cursor is there already, or further. Raises LF001 on a stale fence, 55P03, 40001 as fence_check, and where another transaction under this fence has moved the cursor since this one''s snapshot, or from where it was expected; 22023.';
