package eskit.lease.spring;

import eskit.lease.Lead;
import eskit.lease.Leases;
import java.sql.SQLException;
import java.time.Duration;
import java.util.ConcurrentModificationException;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;
import org.springframework.dao.CannotAcquireLockException;
import org.springframework.integration.support.locks.DistributedLock;

/** A lock of one name: one thread of the process at a time, which leads. */
final class LeaseLock implements DistributedLock {
    private final Leases leases;
    private final String name;
    private final ReentrantLock local = new ReentrantLock();
    private volatile long usedAt;
    private Tenure tenure; // of the thread that holds `local`

    LeaseLock(Leases leases, String name) {
        this.leases = leases;
        this.name = name;
    }

    /** What a thread holds, from the grant to the unlock. */
    private static final class Tenure {
        private final Lead lead;
        private Thread holder = Thread.currentThread();
        private boolean interrupted;
        private CompletableFuture<Void> end = new CompletableFuture<>();

        Tenure(Lead lead) {
            this.lead = lead;
            lead.onCancelled(this::interrupt);
        }

        private synchronized void interrupt() {
            if (holder == null) return;
            interrupted = true;
            holder.interrupt();
        }

        /** Gives the lease up after this time, as its holder has asked for. */
        void endAfter(Duration ttl) {
            if (ttl == null) return;
            end.cancel(false);
            end = new CompletableFuture<>();
            end.completeOnTimeout(null, ttl.toMillis(), TimeUnit.MILLISECONDS).thenRun(() -> {
                lead.unsure();
                closeLater();
            });
        }

        /** Ends the tenure, and returns whether the lease was held to the end. */
        boolean close() {
            synchronized (this) {
                holder = null; // is interrupted no more
                if (interrupted) Thread.interrupted(); // this was for the work that has ended
            }
            end.cancel(false);
            boolean held = lead.isTrusted();
            if (held) lead.close();
            else closeLater();
            return held;
        }

        /** Releases what may be left: the holder is told of a loss at once, even if the server does not answer. */
        private void closeLater() {
            Thread thread = new Thread(lead::close, "eskit-lease release");
            thread.setDaemon(true);
            thread.start();
        }
    }

    void touch() {
        usedAt = System.nanoTime();
    }

    boolean isUnused(long ageMs) {
        return !local.isLocked() && System.nanoTime() - usedAt > TimeUnit.MILLISECONDS.toNanos(ageMs);
    }

    void renew(Duration ttl) {
        if (!local.isHeldByCurrentThread() || !tenure.lead.isTrusted()) throw notOwned();
        tenure.endAfter(ttl);
    }

    private IllegalMonitorStateException notOwned() {
        return new IllegalMonitorStateException("this thread does not own the lock of " + name);
    }

    @Override
    public void lock() {
        lock(null);
    }

    @Override
    public void lock(Duration ttl) {
        uninterruptibly(() -> lockInterruptibly(ttl));
    }

    @Override
    public void lockInterruptibly() throws InterruptedException {
        lockInterruptibly(null);
    }

    private boolean lockInterruptibly(Duration ttl) throws InterruptedException {
        local.lockInterruptibly();
        if (!enter(() -> Optional.of(leases.lead(name)), ttl))
            throw new CannotAcquireLockException("the lock of " + name + " was lost while this thread held it");
        return true;
    }

    @Override
    public boolean tryLock() {
        return uninterruptibly(() -> local.tryLock() && enter(() -> tryLead(null), null));
    }

    @Override
    public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
        return tryLock(Duration.of(time, unit.toChronoUnit()), null);
    }

    @Override
    public boolean tryLock(Duration time, Duration ttl) throws InterruptedException {
        long began = System.nanoTime();
        if (!local.tryLock(time.toNanos(), TimeUnit.NANOSECONDS)) return false;
        Duration left = time.minusNanos(System.nanoTime() - began);
        return enter(() -> tryLead(left.isNegative() ? Duration.ZERO : left), ttl);
    }

    private Optional<Lead> tryLead(Duration time) throws SQLException, InterruptedException {
        try {
            return time == null ? leases.tryLead(name) : leases.tryLead(name, time);
        } catch (IllegalStateException drains) { // an answer at once would let an initiator of leaders spin
            if (time != null) Thread.sleep(time.toMillis());
            return Optional.empty();
        }
    }

    @Override
    public void unlock() {
        if (!local.isHeldByCurrentThread()) throw notOwned();
        boolean held = true;
        try {
            if (local.getHoldCount() == 1) held = tenure.close();
        } finally {
            local.unlock();
        }
        if (!held) throw new ConcurrentModificationException("the lock of " + name + " was lost before the unlock");
    }

    @Override
    public Condition newCondition() {
        throw new UnsupportedOperationException("a lock of several processes has no conditions");
    }

    private interface Ask {
        Optional<Lead> lead() throws SQLException, InterruptedException;
    }

    /**
     * Asks for the lead, once `local` is held. A thread that holds a lock whose lead was lost is told so, and holds
     * nothing any more: its next try begins anew. If that try succeeded instead, the thread would not know of the loss.
     */
    private boolean enter(Ask ask, Duration ttl) throws InterruptedException {
        if (local.getHoldCount() > 1) {
            if (tenure.lead.isTrusted()) return true;
            tenure.close();
            while (local.isHeldByCurrentThread()) local.unlock();
            return false;
        }
        boolean granted = false;
        try {
            Optional<Lead> lead = ask.lead();
            granted = lead.isPresent();
            if (granted) {
                tenure = new Tenure(lead.get());
                tenure.endAfter(ttl);
            }
        } catch (SQLException error) {
            throw new CannotAcquireLockException("the lock of " + name + " cannot be asked for", error);
        } finally {
            if (!granted) local.unlock();
        }
        return granted;
    }

    private interface Try {
        boolean run() throws InterruptedException;
    }

    private static boolean uninterruptibly(Try act) {
        boolean interrupted = false;
        try {
            while (true) {
                try {
                    return act.run();
                } catch (InterruptedException later) {
                    interrupted = true;
                }
            }
        } finally {
            if (interrupted) Thread.currentThread().interrupt();
        }
    }
}
