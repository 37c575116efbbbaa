-- In order: two take-overs that lock the same groups do so one after the other.
SELECT DISTINCT group_name FROM eskit_lease._members WHERE session = ANY ($1) ORDER BY group_name
