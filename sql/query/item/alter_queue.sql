UPDATE eskit_lease._queues SET max_attempts = coalesce($2, max_attempts), backoff_ms = coalesce($3, backoff_ms) WHERE queue = $1
