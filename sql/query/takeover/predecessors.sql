SELECT session FROM eskit_lease._sessions
WHERE consumer = $1 AND role = $2 AND NOT private AND session <> $3
