SELECT last_value FROM eskit_lease.fence_seq
