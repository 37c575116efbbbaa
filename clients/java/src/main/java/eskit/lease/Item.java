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
        private boolean unknown; // a claim without an answer may have been committed

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
            int wanted = Math.min(concurrency - begun.size(), LARGEST_CLAIM);
            List<Claim> claims;
            try {
                if (unknown) unclaimUnknown(session);
                claims = keeper.rows(session, Claim::of, CLAIM, queue, session, wanted);
            } catch (SQLException error) {
                unknown |= Line.isBroken(error);
                throw error;
            }
            for (Claim claim : claims) {
                Item item = new Item(keeper, queue, session, claim);
                if (keeper.begin(item)) start(item);
                else unclaim(session, claim);
            }
            return claims.size() < wanted ? Core.ALWAYS : now();
        }

        private void unclaimUnknown(String session) throws SQLException {
            for (Claim claim : keeper.rows(session, Claim::of, CLAIMED, queue, session)) {
                if (!begun.contains(claim)) unclaim(session, claim);
            }
            unknown = false;
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
                    handler.handle(item, transaction);
                    return Line.run(transaction, DONE, item.id(), item.fence());
                }));
            } catch (Throwable error) {
                keeper.log(Level.WARNING, "item " + item.id() + " of " + queue + " failed: " + error);
                // LF001 says that the item was done after all.
                keeper.settle(item.session(), FAIL, item.id(), item.fence(), String.valueOf(error));
            } finally {
                item.finish();
                begun.remove(item.claim);
                ended.incrementAndGet();
                keeper.end(item);
            }
        }

        @Override
        void stop() throws InterruptedException {
            keeper.await(begun::isEmpty, Core.ALWAYS);
        }
    }
}
