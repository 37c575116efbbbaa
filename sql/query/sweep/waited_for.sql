-- Lists the resources with waiters, in order, page by page.
SELECT DISTINCT resource FROM eskit_lease._waiters WHERE resource > $1 ORDER BY resource LIMIT $2
