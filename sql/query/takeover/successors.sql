SELECT session, successor FROM eskit_lease._successions WHERE session = ANY ($1)
