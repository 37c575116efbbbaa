SELECT session FROM eskit_lease._sessions WHERE grace_of = $1
