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

CREATE FUNCTION eskit_lease._open_transaction(xid xid) RETURNS xid LANGUAGE c STRICT AS 'MODULE_PATHNAME', '_open_transaction_wrapper';
COMMENT ON FUNCTION eskit_lease._open_transaction(xid) IS 'Internal: the open transaction that has a row in hand; under the view blockers.';
REVOKE ALL ON FUNCTION eskit_lease._open_transaction(xid) FROM PUBLIC;

-- It shows what has the row of a lease in hand, too.
CREATE OR REPLACE VIEW eskit_lease.blockers AS -- lock classes as in src/guard.rs
SELECT CASE k.objsubid
           WHEN 4501 THEN CASE k.mode WHEN 'ShareLock' THEN 'granting to the session' ELSE 'ending the session' END
           WHEN 4502 THEN CASE k.mode WHEN 'ShareLock' THEN 'fenced by the session' ELSE 'ending the session' END
           ELSE CASE k.mode WHEN 'ShareLock' THEN 'fenced' ELSE 'releasing' END
       END AS doing,
       l.resource,
       coalesce(o.consumer, s.consumer) AS consumer,
       k.granted,
       k.pid,
       p.gid AS prepared,
       coalesce(p.prepared, a.xact_start) AS since
FROM (SELECT k.*, (k.classid::bigint << 32) | k.objid::bigint AS key
      FROM pg_locks AS k
      WHERE k.locktype = 'advisory' AND k.objsubid BETWEEN 4501 AND 4503
        AND k.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())) AS k
LEFT JOIN eskit_lease._leases AS l ON k.objsubid = 4503 AND l.fence = k.key
LEFT JOIN eskit_lease._sessions AS o ON o.session = l.session
-- By an equality, which is hashed: there may be many sessions, and many locks.
LEFT JOIN eskit_lease._sessions AS s
    ON ('x' || right(replace(s.session::text, '-', ''), 16))::bit(64)::bigint = CASE WHEN k.objsubid <> 4503 THEN k.key END
-- A prepared transaction has no process; it is known by the lock that it holds on its own id.
LEFT JOIN pg_locks AS x ON k.pid IS NULL AND x.pid IS NULL AND x.locktype = 'transactionid' AND x.mode = 'ExclusiveLock'
    AND x.virtualtransaction = k.virtualtransaction
LEFT JOIN pg_prepared_xacts AS p ON p.transaction = x.transactionid
LEFT JOIN pg_stat_activity AS a ON a.pid = k.pid
UNION ALL
-- The row of a lease is in one transaction's hands at a time: a release with grace needs no other lock.
SELECT 'changing', l.resource, o.consumer, true, x.pid, p.gid, coalesce(p.prepared, a.xact_start)
FROM (SELECT l.resource, l.session, eskit_lease._open_transaction(l.xmax) AS xid FROM eskit_lease._leases AS l WHERE l.xmax <> '0') AS l
JOIN pg_locks AS x ON x.locktype = 'transactionid' AND x.mode = 'ExclusiveLock' AND x.granted AND x.transactionid = l.xid
LEFT JOIN eskit_lease._sessions AS o ON o.session = l.session
LEFT JOIN pg_prepared_xacts AS p ON p.transaction = l.xid
LEFT JOIN pg_stat_activity AS a ON a.pid = x.pid;

COMMENT ON COLUMN eskit_lease.blockers.doing IS 'What the transaction does: fenced, fenced by the session, releasing, granting to the session, ending the session; changing: it has the row of a lease, to acquire it, to release it, at once or with grace, or to take it back.';

COMMENT ON COLUMN eskit_lease.items.added_at IS 'When it was added, or requeued.';
