DELETE FROM eskit_lease._claims WHERE queue = $1
