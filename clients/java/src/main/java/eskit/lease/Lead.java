package eskit.lease;

import static eskit.lease.Line.now;

import eskit.lease.LeaseException.Lost;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicBoolean;

/** Leadership of a name. Close it when the work has ended: that releases the lease. */
public final class Lead extends Fenced implements AutoCloseable {
    private static final String ACQUIRE = "SELECT granted, fence, trust_ms, reason"
            + " FROM eskit_lease.lease_acquire(?::text, ?::uuid, queue => ?::boolean)";

    private static final String NO_ANSWER = "no answer";

    private record Grant(boolean granted, long fence, double trustMs, String reason) {
        /** `trust_ms` is NULL in a refusal, which is not 0 and tells nothing. */
        static Grant of(ResultSet row) throws SQLException {
            return new Grant(row.getBoolean(1), row.getLong(2), row.getDouble(3), row.getString(4));
        }
    }

    private final Runnable giveOn;
    private final CompletableFuture<Void> released = new CompletableFuture<>();
    private final AtomicBoolean closed = new AtomicBoolean();
    private boolean regranted; // the session may hold the name under another fence

    private Lead(Keeper keeper, String name, String session, long fence, Runnable giveOn) {
        super(keeper, name, session, fence);
        this.giveOn = giveOn;
    }

    /** Waits for leadership until then; null if it did not come. Without `queue` it asks only once. */
    static Lead acquire(Keeper keeper, String name, double until, boolean queue)
            throws SQLException, InterruptedException {
        Runnable turn = keeper.turns.take("lead " + name, until);
        if (turn == null) return null;
        String asked = null;
        boolean answered = true;
        Lead lead = null;
        try {
            do {
                String session = keeper.trusted(until);
                if (session == null) break;
                long noted = keeper.asks();
                Grant grant = ask(keeper, name, session, queue);
                answered = !grant.reason.equals(NO_ANSWER);
                asked = session;
                if (grant.granted) {
                    Lead made = new Lead(keeper, name, session, grant.fence, turn);
                    if (keeper.begin(made)) lead = made;
                } else if (queue) {
                    // An ask follows only where there is a place in line.
                    double again = grant.reason.equals("queued") ? until : Math.min(until, keeper.retryAt());
                    keeper.await(() -> keeper.asks() > noted, again);
                }
            } while (lead == null && queue && now() < until);
            return lead;
        } finally {
            String session = asked;
            boolean finished = answered;
            if (lead == null && session == null) turn.run();
            else if (lead == null)
                keeper.giveBack(
                        session,
                        () -> {
                            if (!finished) keeper.repeat(session, Grant::of, ACQUIRE, name, session, false);
                            withdraw(keeper, name, session);
                        },
                        turn);
        }
    }

    private static Grant ask(Keeper keeper, String name, String session, boolean queue) throws SQLException {
        double sent = now();
        try {
            Grant grant = keeper.rows(session, Grant::of, ACQUIRE, name, session, queue)
                    .get(0);
            boolean ended = grant.reason.equals("expired") || grant.reason.equals("unknown_session");
            if (grant.granted || ended) keeper.heard(session, sent, !ended, grant.trustMs);
            return grant;
        } catch (SQLException error) {
            if (!(error instanceof Lost) && !Keeper.passes(error)) throw error;
            return new Grant(false, 0, 0, NO_ANSWER);
        }
    }

    /** Gives the place in line up, and releases a grant that crossed it. */
    private static void withdraw(Keeper keeper, String name, String session) {
        keeper.settle(session, "SELECT eskit_lease.lease_cancel(?::text, ?::uuid)", name, session);
        keeper.settle(session, "SELECT eskit_lease.lease_release_many(ARRAY[?::text], ?::uuid)", name, session);
    }

    @Override
    void recheck() {
        synchronized (released) { // an ask after the release would hold the lease again
            if (isOver()) return;
            double sent = now();
            try {
                Grant grant = keeper.repeat(session(), Grant::of, ACQUIRE, name(), session(), false);
                if (grant.reason.equals("already_held") && grant.fence == fence()) {
                    keeper.heard(session(), sent, true, grant.trustMs);
                    return;
                }
                regranted = true;
            } catch (SQLException ended) { // and the lease with it
            }
            cancel();
        }
    }

    /** Ends the scope, and waits until the lease is released. */
    @Override
    public void close() {
        finish();
        if (closed.compareAndSet(false, true)) keeper.pool.execute(this::release);
        released.join();
    }

    private void release() {
        synchronized (released) {
            keeper.settle(session(), "SELECT eskit_lease.lease_release(?::text, ?::bigint)", name(), fence());
            if (regranted) withdraw(keeper, name(), session());
        }
        keeper.end(this);
        giveOn.run();
        released.complete(null);
    }
}
