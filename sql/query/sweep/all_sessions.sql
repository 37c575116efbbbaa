SELECT session FROM eskit_lease._sessions
