package eskit.lease;

import static eskit.lease.Line.now;

import java.sql.SQLException;
import java.util.Optional;

/** Leadership of a name. Close it when the work has ended: that releases the lease. */
public final class Lead extends Fenced implements AutoCloseable {
    private static final String ACQUIRE = "SELECT granted, fence, trust_ms, reason"
            + " FROM eskit_lease.lease_acquire(?::text, ?::uuid, queue => ?::boolean)";
    private static final String RELEASE = "SELECT eskit_lease.lease_release(?::text, ?::bigint)";
    private static final String CANCEL = "SELECT eskit_lease.lease_cancel(?::text, ?::uuid)";
    private static final String RELEASE_ANY = "SELECT eskit_lease.lease_release_many(ARRAY[?::text], ?::uuid)";

    /** In a refusal `trust_ms` is NULL, which is not 0 and tells nothing. */
    private record Grant(boolean granted, long fence, double trustMs, String reason) {
        static final Line.Row<Grant> ROW =
                row -> new Grant(row.getBoolean(1), row.getLong(2), row.getDouble(3), row.getString(4));

        static Grant ask(Keeper keeper, String name, String session, boolean queues) throws SQLException {
            double sent = now();
            Grant grant =
                    keeper.repeat(session, ROW, ACQUIRE, name, session, queues).get(0);
            boolean ended = grant.reason.equals("expired") || grant.reason.equals("unknown_session");
            if (grant.granted || ended) keeper.heard(session, sent, !ended, grant.trustMs);
            return grant;
        }
    }

    /** Waits for leadership, and keeps it until the lead is closed. */
    static final class Candidate extends Verb<Lead> {
        private final String name;
        private final boolean queues;
        private String place; // the session that may have a place in line, or a lease without a scope

        Candidate(Keeper keeper, String name, boolean queues) {
            super(keeper, "lead " + name);
            this.name = name;
            this.queues = queues;
        }

        @Override
        void run() throws SQLException, InterruptedException {
            try {
                Optional<Lead> lead = look(this::ask, error -> !queues || LeaseException.isFinal(error));
                if (lead != null && lead.isPresent()) live(lead.get());
            } finally {
                if (place != null) {
                    keeper.settle(place, CANCEL, name, place);
                    keeper.settle(place, RELEASE_ANY, name, place); // also a grant that crossed the cancel
                }
            }
        }

        private Optional<Lead> ask(String session) throws SQLException {
            long asked = keeper.asks();
            if (queues) place = session;
            Grant grant = Grant.ask(keeper, name, session, queues);
            if (grant.granted) {
                place = session;
                if (keeper.used.contains(grant.fence)) {
                    keeper.giveBack(session, RELEASE_ANY, name, session);
                    return ask(session);
                }
                Lead lead = new Lead(this, session, grant.fence, asked);
                if (lead.begin() && give(lead)) {
                    place = null;
                    return Optional.of(lead);
                }
                keeper.end(lead);
            }
            // An ask follows only where there is a place in line.
            if (!grant.reason.equals("queued")) again(keeper.retryAt());
            return queues ? null : Optional.empty();
        }

        /** Asks at each ask whether the lease is still held, until the lead is closed. Then gives it back. */
        private void live(Lead lead) throws InterruptedException {
            while (!lead.closed) {
                long seen = lead.asked;
                keeper.await(() -> lead.closed || keeper.asks() > seen && !lead.isOver(), Core.ALWAYS);
                lead.asked = keeper.asks();
                if (!lead.closed && !lead.isHeld()) lead.cancel();
            }
            Object released = keeper.settle(lead.session(), RELEASE, name, lead.fence());
            if (released == null) keeper.used.add(lead.fence());
            // If not, the session may hold the name under another fence.
            if (!Boolean.TRUE.equals(released)) place = lead.session();
            keeper.end(lead);
        }
    }

    private final Candidate life;
    private long asked;
    private volatile boolean closed;

    /** Waits for leadership until then; empty if it did not come. Without `queues` it asks only once. */
    static Optional<Lead> acquire(Keeper keeper, String name, boolean queues, double until)
            throws SQLException, InterruptedException {
        Candidate candidate = new Candidate(keeper, name, queues);
        boolean mayCome = queues || keeper.trusted() != null && !keeper.turns.containsKey(candidate.turn);
        candidate.start();
        return Optional.ofNullable(candidate.take(mayCome ? until : now()));
    }

    private Lead(Candidate life, String session, long fence, long asked) {
        super(life.keeper, life.name, session, fence);
        this.life = life;
        this.asked = asked;
    }

    private boolean isHeld() {
        try {
            Grant grant = Grant.ask(keeper, name(), session(), false);
            return grant.reason.equals("already_held") && grant.fence == fence();
        } catch (SQLException ended) { // and the lease with it
            return false;
        }
    }

    /** Ends the scope, and waits until the lease is released. */
    @Override
    public void close() {
        finish();
        closed = true;
        life.end();
    }
}
