package eskit.lease;

import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;

/**
 * What the process may do under one fence, until it ends or is cancelled: when the lease ends, or the trust in it. A
 * scope that is cancelled is never alive again.
 */
public abstract sealed class Scope permits Fenced, Item, Attempt {
    final Keeper keeper;
    private final String name, session;
    private final long fence;
    final CompletableFuture<Void> cancelled = new CompletableFuture<>();
    private boolean over;
    private Thread runner; // to interrupt
    private long seen;

    Scope(Keeper keeper, String name, String session, long fence) {
        this.keeper = keeper;
        this.name = name;
        this.session = session;
        this.fence = fence;
        this.seen = keeper.asks();
    }

    /** {@return the name of the lease, group, queue or run-once key} */
    public String name() {
        return name;
    }

    /** {@return the fencing token} */
    public long fence() {
        return fence;
    }

    /** {@return the uuid of the session, which is to be kept private} */
    public String session() {
        return session;
    }

    /** {@return whether work may begin: the scope is not cancelled, and the last answer may still be believed} */
    public boolean isTrusted() {
        if (!isOver() && !keeper.trusts(session)) cancel(); // a process that was stopped sees it here first
        return !isOver();
    }

    /** {@return whether the work should come to its end: the scope is cancelled, or the keeper drains} */
    public boolean isStopping() {
        return keeper.isStopping() || !isTrusted();
    }

    /**
     * Runs an action, on a thread of the keeper, when the scope is cancelled; at once if it is.
     */
    public void onCancelled(Runnable action) {
        cancelled.thenRunAsync(action, keeper.pool);
    }

    /**
     * Calls the work on this thread, and interrupts the thread when the scope is cancelled.
     *
     * @return the work's result
     * @throws Exception what the work throws; Lost instead of an InterruptedException of the scope's cancellation
     */
    public <T> T run(Callable<T> work) throws Exception {
        synchronized (this) {
            if (over) throw lost(null);
            runner = Thread.currentThread();
        }
        try {
            return work.call();
        } catch (InterruptedException error) {
            throw isOver() ? lost(error) : error;
        } finally {
            synchronized (this) {
                runner = null;
                if (over) Thread.interrupted(); // the interrupt was for the work
            }
        }
    }

    /**
     * Waits for news: the first change of the session since the scope began or news() returned last. With
     * {@link Leases.Builder#watch} that includes new events.
     *
     * @return false if the scope is cancelled
     */
    public boolean news() throws InterruptedException {
        keeper.await(() -> isOver() || keeper.asks() > seen, Core.ALWAYS);
        seen = keeper.asks();
        return !isOver();
    }

    /** Reports a transaction whose end is unknown: ends the scope, so that the next one begins under a new fence. */
    public void unsure() {
        cancel();
    }

    synchronized boolean isOver() {
        return over;
    }

    LeaseException.Lost lost(Exception cause) {
        return new LeaseException.Lost("the scope of " + name + " has ended", cause);
    }

    /** Hands the scope out; false if its session, or the trust in it, has ended meanwhile. */
    boolean begin() {
        return keeper.begin(this, session, this::cancel);
    }

    /** Ends the scope without a cancellation. Returns false if it has ended before. */
    synchronized boolean finish() {
        boolean isFirst = !over;
        over = true;
        return isFirst;
    }

    /** Never waits: callbacks run on threads of their own. */
    void cancel() {
        synchronized (this) {
            if (!finish()) return;
            if (runner != null) runner.interrupt();
        }
        keeper.pool.execute(() -> {
            cancelled.complete(null);
            keeper.nudge();
        });
    }
}
