package eskit.lease.spring;

import eskit.lease.Leases;
import java.time.Duration;
import java.util.concurrent.ConcurrentHashMap;
import org.springframework.integration.support.locks.DistributedLock;
import org.springframework.integration.support.locks.ExpirableLockRegistry;
import org.springframework.integration.support.locks.RenewableLockRegistry;

/**
 * Spring Integration's locks on a keeper: each lock that is held is a lead. When the lease, or the trust in it, ends
 * before the unlock, the holder's thread is interrupted, reentrant tries fail, and unlock() throws a
 * ConcurrentModificationException.
 */
public final class LeaseLockRegistry
        implements ExpirableLockRegistry<DistributedLock>, RenewableLockRegistry<DistributedLock> {
    private final Leases leases;
    private final String prefix;
    private final ConcurrentHashMap<String, LeaseLock> locks = new ConcurrentHashMap<>();

    /**
     * Makes a registry whose leases have the keys' texts as names.
     *
     * @param leases the keeper, which the caller closes after the locks' users have stopped
     */
    public LeaseLockRegistry(Leases leases) {
        this(leases, "");
    }

    /**
     * Makes a registry.
     *
     * @param leases the keeper, which the caller closes after the locks' users have stopped
     * @param prefix stands before each key in the name of its lease
     */
    public LeaseLockRegistry(Leases leases, String prefix) {
        this.leases = leases;
        this.prefix = prefix;
    }

    @Override
    public DistributedLock obtain(Object key) {
        return locks.compute(prefix + key, (name, known) -> {
            LeaseLock lock = known != null ? known : new LeaseLock(leases, name);
            lock.touch();
            return lock;
        });
    }

    /** Forgets locks that no thread holds. A lock that a caller still has goes on working. */
    @Override
    public void expireUnusedOlderThan(long ageMs) {
        locks.values().removeIf(lock -> lock.isUnused(ageMs));
    }

    /** Does nothing but check that this thread holds the lock: the keeper renews what is held. */
    @Override
    public void renewLock(Object key) {
        held(key).renew(null);
    }

    /** Lets the lock end after this time, instead of that of {@link DistributedLock#lock(Duration)}. */
    @Override
    public void renewLock(Object key, Duration ttl) {
        held(key).renew(ttl);
    }

    private LeaseLock held(Object key) {
        LeaseLock lock = locks.get(prefix + key);
        if (lock == null) throw new IllegalMonitorStateException("this thread does not own the lock of " + key);
        return lock;
    }
}
