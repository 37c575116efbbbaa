DELETE FROM eskit_lease._sessions WHERE session = ANY ($1)
