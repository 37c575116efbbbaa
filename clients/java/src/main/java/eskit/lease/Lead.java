package eskit.lease;

import java.sql.SQLException;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicBoolean;

/** Leadership of a name. Close it when the work has ended: that releases the lease. */
public final class Lead extends Fenced implements AutoCloseable {
    private static final Set<String> IN_PLACE = Set.of("held", "queued", "awaited", "bridged");

    private record Grant(boolean granted, long fence, double trustMs, String reason) {}

    private final Runnable giveOn;
    private final CompletableFuture<Void> released = new CompletableFuture<>();
    private final AtomicBoolean closed = new AtomicBoolean();
    private boolean asked; // again, when the lease was no longer held: there may be a place in line, or another grant

    private Lead(Keeper keeper, String name, String session, long fence, Runnable giveOn) {
        super(keeper, name, session, fence);
        this.giveOn = giveOn;
    }

    /** Waits for leadership until then; null if it did not come. Without `queue` it asks only once. */
    static Lead acquire(Keeper keeper, String name, double until, boolean queue)
            throws SQLException, InterruptedException {
        Runnable turn = keeper.turns.take("lead " + name, until);
        if (turn == null) return null;
        String session = null;
        Lead lead = null;
        try {
            do {
                session = keeper.trusted(until);
                if (session == null) break;
                long noted = keeper.asks();
                Grant grant = ask(keeper, name, session, queue);
                if (grant.granted) {
                    Lead made = new Lead(keeper, name, session, grant.fence, turn);
                    if (keeper.begin(made)) lead = made;
                } else if (queue) {
                    // A place in line is told of by an ask. After any other answer only time helps.
                    double pause = IN_PLACE.contains(grant.reason)
                            ? until
                            : Math.min(until, Keeper.now() + Math.min(1_000, keeper.ttl / 6));
                    keeper.await(() -> keeper.asks() > noted, pause);
                }
            } while (lead == null && queue && Keeper.now() < until);
            return lead;
        } finally {
            String asked = session;
            if (lead == null)
                keeper.pool.execute(() -> {
                    if (asked != null) withdraw(keeper, name, asked);
                    turn.run();
                });
        }
    }

    private static Grant ask(Keeper keeper, String name, String session, boolean queue) throws SQLException {
        double sent = Keeper.now();
        try {
            Grant grant = keeper.once(session, c -> acquire(c, name, session, queue));
            boolean ended = grant.reason.equals("expired") || grant.reason.equals("unknown_session");
            if (grant.granted || ended) keeper.heard(session, sent, !ended, grant.trustMs);
            return grant;
        } catch (LeaseException.Lost ended) {
            return new Grant(false, 0, 0, "expired");
        } catch (SQLException error) {
            if (!Keeper.passes(error)) throw error;
            return new Grant(false, 0, 0, "no answer");
        }
    }

    private static Grant acquire(java.sql.Connection connection, String name, String session, boolean queue)
            throws SQLException {
        return Line.row(
                connection,
                row -> new Grant(row.getBoolean(1), row.getLong(2), row.getDouble(3), row.getString(4)),
                "SELECT granted, fence, trust_ms, reason"
                        + " FROM eskit_lease.lease_acquire(?::text, ?::uuid, queue => ?::boolean)",
                name,
                session,
                queue);
    }

    /** Gives the place in line up, and releases a grant that crossed it. */
    private static void withdraw(Keeper keeper, String name, String session) {
        String cancel = "SELECT eskit_lease.lease_cancel(?::text, ?::uuid)";
        String release = "SELECT eskit_lease.lease_release_many(ARRAY[?::text], ?::uuid)";
        try {
            keeper.repeat(session, c -> Line.run(c, cancel, name, session) && Line.run(c, release, name, session));
        } catch (SQLException ended) { // nothing is left to give up
        }
    }

    @Override
    void recheck() {
        synchronized (released) { // an ask after the release would hold the lease again
            if (isOver()) return;
            double sent = Keeper.now();
            try {
                Grant grant = keeper.repeat(session(), c -> acquire(c, name(), session(), true));
                if (grant.reason.equals("already_held") && grant.fence == fence()) {
                    keeper.heard(session(), sent, true, grant.trustMs);
                    return;
                }
                asked = true;
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
            try {
                keeper.repeat(
                        session(),
                        c -> Line.run(c, "SELECT eskit_lease.lease_release(?::text, ?::bigint)", name(), fence()));
                if (asked) withdraw(keeper, name(), session());
            } catch (SQLException ended) { // nothing is left to release
            }
        }
        keeper.end(this);
        giveOn.run();
        released.complete(null);
    }
}
