DELETE FROM eskit_lease._deaths AS d WHERE NOT EXISTS (SELECT FROM eskit_lease._sessions AS s WHERE s.session = d.session)
