UPDATE eskit_lease._sessions SET grace_of = $2 WHERE session = ANY ($1)
