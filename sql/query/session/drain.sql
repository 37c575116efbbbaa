UPDATE eskit_lease._sessions SET draining = true WHERE session = $1 AND NOT draining
