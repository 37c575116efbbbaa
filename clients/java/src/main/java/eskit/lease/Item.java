package eskit.lease;

import static eskit.lease.Line.now;

import java.lang.System.Logger.Level;
import java.sql.Connection;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
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

    private record Claim(long id, String key, String payload, int attempt, long fence) {
        static Claim of(ResultSet row) throws SQLException {
            return new Claim(row.getLong(1), row.getString(2), row.getString(3), row.getInt(4), row.getLong(5));
        }
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

    /** The loop of a worker: claims as many items as there are free handlers. */
    static final class Worker extends Running.Loop {
        private static final int LARGEST_CLAIM = 1_000;
        private static final String COLUMNS = "SELECT id, key, payload::text, attempt, fence FROM eskit_lease.";
        private static final String CLAIM = COLUMNS + "item_claim(?::text, ?::uuid, ?::int)";
        private static final String CLAIMED =
                COLUMNS + "items WHERE queue = ?::text AND session = ?::uuid AND state = 'claimed'";
        private static final String UNCLAIM = "SELECT eskit_lease.item_unclaim(ARRAY[?::bigint], ?::bigint)";
        private static final String DONE = "SELECT eskit_lease.item_done(ARRAY[?::bigint], ?::bigint)";
        private static final String FAIL = "SELECT eskit_lease.item_fail(?::bigint, ?::bigint, ?::text)";

        private final String queue;
        private final int concurrency;
        private final DataSource source;
        private final Handler handler;
        private final Set<Claim> begun = ConcurrentHashMap.newKeySet();
        private String straysOf; // the session of such a claim
        private double straysUntil = Core.NEVER; // a claim without an answer may be committed until then
        private volatile double restsUntil = Core.NEVER; // as there was no connection for a handler

        Worker(Keeper keeper, String queue, int concurrency, DataSource source, Handler handler) {
            super(keeper);
            this.queue = queue;
            this.concurrency = concurrency;
            this.source = source;
            this.handler = handler;
        }

        @Override
        boolean hasRoom() {
            return begun.size() < concurrency;
        }

        @Override
        double round(String session) throws SQLException {
            if (!session.equals(straysOf)) straysUntil = Core.NEVER; // they have ended with their session
            if (straysUntil > Core.NEVER && !unclaimStrays(session)) return now();
            if (now() < restsUntil) return restsUntil;
            int wanted = Math.min(concurrency - begun.size(), LARGEST_CLAIM);
            List<Claim> claims;
            try {
                claims = keeper.rows(session, Claim::of, CLAIM, queue, session, wanted);
            } catch (SQLException error) {
                if (Line.isBroken(error)) {
                    straysOf = session;
                    straysUntil = now() + 2 * keeper.ttl;
                }
                throw error;
            }
            for (Claim claim : claims) {
                Item item = new Item(keeper, queue, session, claim);
                if (keeper.begin(item)) start(item);
                else unclaim(session, claim);
            }
            if (claims.size() == wanted) return now();
            return straysUntil > Core.NEVER ? now() + keeper.ttl / 2 : Core.ALWAYS;
        }

        /**
         * Gives back what a claim without an answer has claimed. It may be committed late, so this looks repeatedly.
         * Returns false if that ended the session.
         */
        private boolean unclaimStrays(String session) throws SQLException {
            boolean isLast = now() > straysUntil;
            try {
                for (Claim claim : keeper.repeatAll(session, Claim::of, CLAIMED, queue, session)) {
                    if (!begun.contains(claim)) unclaim(session, claim);
                }
            } catch (SQLException error) {
                if (!"42501".equals(error.getSQLState())) throw error;
                straysUntil = Core.NEVER;
                keeper.giveUp(session, "a claim had no answer, and only grant_monitor shows what it got: " + error);
                return false;
            }
            if (isLast) straysUntil = Core.NEVER;
            return true;
        }

        private void unclaim(String session, Claim claim) {
            keeper.settle(session, UNCLAIM, claim.id, claim.fence);
        }

        private void start(Item item) {
            begun.add(item.claim);
            Line.daemon("eskit-lease " + queue + " " + item.id(), () -> handle(item))
                    .start();
        }

        private void handle(Item item) {
            try (Connection connection = source.getConnection()) {
                item.run(() -> Fenced.transact(item, connection, transaction -> {
                    item.begun = true;
                    handler.handle(item, transaction);
                    return Line.run(transaction, DONE, item.id(), item.fence());
                }));
            } catch (Throwable error) {
                String how = item.begun ? " failed: " : " could not begin: ";
                keeper.log(Level.WARNING, "item " + item.id() + " of " + queue + how + Keeper.storable(error));
                // LF001 says that the item was done after all.
                if (item.begun) keeper.fail(item.session(), FAIL, item.id(), item.fence(), error);
                else rest(item);
            } finally {
                item.finish();
                begun.remove(item.claim);
                ended.incrementAndGet();
                keeper.end(item);
            }
        }

        /** No connection, as from a pool that is used up, is no fault of the item: that takes no attempt from it. */
        private void rest(Item item) {
            restsUntil = now() + 1_000;
            unclaim(item.session(), item.claim);
        }

        @Override
        void stop() throws InterruptedException {
            keeper.await(begun::isEmpty, Core.ALWAYS);
            // Else nothing is to be found, or the end of the session frees it.
            if (straysUntil == Core.NEVER || !straysOf.equals(keeper.session()) || keeper.isStopping()) return;
            try {
                unclaimStrays(straysOf);
            } catch (SQLException error) {
                keeper.log(Level.WARNING, "items of " + queue + " may stay claimed by the session: " + error);
            }
        }
    }
}
