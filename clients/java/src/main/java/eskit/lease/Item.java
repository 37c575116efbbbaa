package eskit.lease;

import static eskit.lease.Line.now;

import java.lang.System.Logger.Level;
import java.sql.Connection;
import java.sql.SQLException;
import java.util.List;
import javax.sql.DataSource;

/** A claimed item of a queue. */
public final class Item extends Scope {
    /** What a worker does with an item. */
    @FunctionalInterface
    public interface Handler {
        /**
         * Handles an item in the transaction that also finishes it.
         *
         * @param transaction a connection of the application's source; neither commit it nor roll it back
         * @throws Exception fails the attempt: rolls back, and the item is tried again as its queue says
         */
        void handle(Item item, Connection transaction) throws Exception;
    }

    private static final int LARGEST_CLAIM = 1_000;
    private static final String COLUMNS = "SELECT id, key, payload::text, attempt, fence FROM eskit_lease.";
    private static final String CLAIM = COLUMNS + "item_claim(?::text, ?::uuid, ?::int)";
    private static final String CLAIMED =
            COLUMNS + "items WHERE queue = ?::text AND session = ?::uuid AND state = 'claimed'";
    private static final String UNCLAIM = "SELECT eskit_lease.item_unclaim(ARRAY[?::bigint], ?::bigint)";
    private static final String DONE = "SELECT eskit_lease.item_done(ARRAY[?::bigint], ?::bigint)";
    private static final String FAIL = "SELECT eskit_lease.item_fail(?::bigint, ?::bigint, ?::text)";

    private record Claim(long id, String key, String payload, int attempt, long fence) {
        static final Line.Row<Claim> ROW =
                row -> new Claim(row.getLong(1), row.getString(2), row.getString(3), row.getInt(4), row.getLong(5));
    }

    private final Claim claim;
    private boolean begun; // the handler

    private Item(Keeper keeper, String queue, String session, Claim claim) {
        super(keeper, queue, session, claim.fence);
        this.claim = claim;
    }

    /** {@return the permanent id} */
    public long id() {
        return claim.id;
    }

    /** {@return the key, or null} */
    public String key() {
        return claim.key;
    }

    /** {@return the payload, as JSON text} */
    public String payload() {
        return claim.payload;
    }

    /** {@return how often it was claimed, from 1} */
    public int attempt() {
        return claim.attempt;
    }

    /** A worker: claims as many items as there are free handlers. */
    static final class Worker extends Verb<Void> {
        private final String queue;
        private final int concurrency;
        private final DataSource source;
        private final Handler handler;
        private String straysOf; // the session of a claim without an answer
        private double straysUntil = Core.NEVER; // which may be committed until then
        private volatile double restsUntil = Core.NEVER; // as there was no connection for a handler

        Worker(Keeper keeper, String queue, int concurrency, DataSource source, Handler handler) {
            super(keeper, "queue " + queue);
            this.queue = queue;
            this.concurrency = concurrency;
            this.source = source;
            this.handler = handler;
        }

        @Override
        void run() throws SQLException, InterruptedException {
            try {
                look(this::follow, LeaseException::isLasting);
            } finally {
                keeper.rest(tasks::isEmpty, Core.ALWAYS);
                // In a drain the end of the session frees them.
                String session = keeper.session();
                if (session != null && !keeper.isStopping()) unclaimStrays(session);
            }
        }

        private Void follow(String session) throws SQLException {
            unclaimStrays(session);
            int free = Math.min(concurrency - tasks.size(), LARGEST_CLAIM);
            if (now() < restsUntil) again(restsUntil);
            else if (free > 0 && keeper.trusts(session) && claim(session, free) == free) ring();
            return null;
        }

        /** Claims items, and starts their handlers. Returns how many. */
        private int claim(String session, int wanted) throws SQLException {
            keeper.calls.look();
            try {
                List<Claim> claims = keeper.rows(session, Claim.ROW, CLAIM, queue, session, wanted);
                for (Claim claim : claims) {
                    Item item = new Item(keeper, queue, session, claim);
                    if (!start(claim.id, item, () -> handle(item))) unclaim(session, claim);
                }
                return claims.size();
            } catch (SQLException error) {
                if (LeaseException.isBroken(error) && !Line.NOT_MADE.equals(error.getSQLState())) {
                    straysOf = session;
                    straysUntil = now() + 2 * keeper.ttl;
                }
                throw error;
            }
        }

        /** Gives back what a claim without an answer has taken. It may commit late, so this looks repeatedly. */
        private void unclaimStrays(String session) {
            if (!session.equals(straysOf)) return; // there are none, or they have ended with their session
            boolean isLast = now() > straysUntil;
            try {
                for (Claim claim : keeper.repeat(session, Claim.ROW, CLAIMED, queue, session))
                    if (!tasks.containsKey(claim.id)) unclaim(session, claim);
                if (isLast) straysOf = null;
            } catch (SQLException error) {
                if ("42501".equals(error.getSQLState()))
                    keeper.replace(
                            session, "a claim had no answer, and only grant_monitor shows what it got: " + error);
                else keeper.log(Level.WARNING, "items of " + queue + " may stay claimed by the session: " + error);
            }
            again(now() + keeper.ttl / 2);
        }

        private void unclaim(String session, Claim claim) {
            keeper.settle(session, UNCLAIM, claim.id, claim.fence);
        }

        private void handle(Item item) {
            try (Connection connection = source.getConnection()) {
                item.run(() -> Fenced.transact(item, connection, transaction -> {
                    item.begun = true;
                    handler.handle(item, transaction);
                    return Line.row(transaction, row -> true, DONE, item.id(), item.fence());
                }));
            } catch (Throwable error) {
                String how = item.begun ? " failed: " : " could not begin: ";
                keeper.log(Level.WARNING, "item " + item.id() + " of " + queue + how + LeaseException.textOf(error));
                if (item.begun) { // LF001 says that the item was done after all
                    keeper.fail(item.session(), FAIL, item.id(), item.fence(), error);
                } else { // no connection, as from a pool that is used up, is no fault of the item: it takes no attempt
                    restsUntil = now() + 1_000;
                    unclaim(item.session(), item.claim);
                }
            }
        }
    }
}
