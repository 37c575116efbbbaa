DELETE FROM eskit_lease._later WHERE queue = $1
