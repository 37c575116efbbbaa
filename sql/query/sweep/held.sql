SELECT resource, slot, ctid, fence, session FROM eskit_lease._leases WHERE session = ANY ($1) LIMIT $2 OFFSET $3
