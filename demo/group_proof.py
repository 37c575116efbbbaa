"""What must hold once all members of the group `payments` have departed. Each proof is a query for rows that contradict
it."""

CONTRADICTIONS = [
    ("payments out of place", """SELECT partition, position FROM payments
        WHERE partition <> eskit_lease.partition_for(account, 64)"""),
    ("numbers without a payment", """SELECT partition, h.position FROM payment_heads h LEFT JOIN payments p USING (partition)
        GROUP BY partition, h.position HAVING count(p.position) <> h.position"""),
    ("payments never applied", """SELECT partition, position FROM payments
        EXCEPT SELECT partition, position FROM payments_applied"""),
    ("payments applied twice", """SELECT partition, position FROM payments_applied GROUP BY 1, 2 HAVING count(*) > 1"""),
    ("applied and never written", """SELECT partition, position, account FROM payments_applied
        EXCEPT SELECT partition, position, account FROM payments"""),
    ("accounts out of order", """SELECT partition, position, turn FROM (SELECT *, lag(position) OVER
        (PARTITION BY account ORDER BY turn, position) AS before FROM payments_applied) p WHERE position <= before"""),
    ("partitions out of order", """SELECT partition, position, turn FROM (SELECT *, lag(position, 1, 0::bigint) OVER
        (PARTITION BY partition ORDER BY turn, position) AS before FROM payments_applied) p WHERE position <> before + 1"""),
    ("fences that fall", """SELECT partition, position, turn FROM (SELECT *, lag(fence) OVER
        (PARTITION BY partition ORDER BY turn, position) AS before FROM payments_applied) p WHERE fence < before"""),
    ("fences of two members", """SELECT partition, min(position), fence FROM payments_applied
        GROUP BY partition, fence HAVING count(DISTINCT member) > 1"""),
    ("cursors short of the end", """SELECT partition, l.position, l.head
        FROM eskit_lease.group_lag l JOIN payment_heads h USING (partition)
        WHERE (l.position, coalesce(l.head, 0)) IS DISTINCT FROM (h.position, h.position)"""),
    ("partitions still owned", """SELECT partition, fence FROM eskit_lease.group_partitions WHERE state <> 'free'"""),
]  # fmt: skip


def contradictions(db):
    """Returns each claim with the rows that contradict it; a row begins with the partition."""
    return [(what, db.execute(sql).fetchall()) for what, sql in CONTRADICTIONS]
