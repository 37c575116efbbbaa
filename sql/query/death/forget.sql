DELETE FROM eskit_lease._deaths WHERE session = ANY ($1)
