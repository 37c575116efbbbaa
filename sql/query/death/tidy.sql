-- Skips rows that another sweep has locked: that sweep may be open, or prepared, for long.
DELETE FROM eskit_lease._deaths
WHERE ctid = ANY (ARRAY(
    SELECT d.ctid FROM eskit_lease._deaths AS d
    WHERE NOT EXISTS (SELECT FROM eskit_lease._sessions AS s WHERE s.session = d.session)
    FOR UPDATE OF d SKIP LOCKED))
