SELECT fence FROM eskit_lease._claims WHERE session = ANY ($1) LIMIT $2 OFFSET $3
