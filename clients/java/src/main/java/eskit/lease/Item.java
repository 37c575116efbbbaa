package eskit.lease;

import java.sql.Connection;
import java.sql.SQLException;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.atomic.AtomicInteger;
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

    private record Claim(long id, String key, String payload, int attempt, long fence) {}

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
    static final class Worker implements Running.Loop {
        private static final String CLAIM =
                "SELECT id, key, payload::text, attempt, fence FROM eskit_lease.item_claim(?::text, ?::uuid, ?::int)";
        private static final String CLAIMED = "SELECT id, key, payload::text, attempt, fence FROM eskit_lease.items"
                + " WHERE queue = ?::text AND session = ?::uuid AND state = 'claimed'";
        private static final String UNCLAIM = "SELECT eskit_lease.item_unclaim(?::bigint[], ?::bigint)";

        private final Keeper keeper;
        private final String queue;
        private final int concurrency;
        private final DataSource source;
        private final Handler handler;
        private final AtomicInteger free;
        private final Set<Claim> begun = java.util.concurrent.ConcurrentHashMap.newKeySet();
        private boolean unknown; // a claim without an answer may have been committed

        Worker(Keeper keeper, String queue, int concurrency, DataSource source, Handler handler) {
            this.keeper = keeper;
            this.queue = queue;
            this.concurrency = concurrency;
            this.source = source;
            this.handler = handler;
            this.free = new AtomicInteger(concurrency);
        }

        @Override
        public void run(Running running) throws SQLException, InterruptedException {
            try {
                while (!running.isStopping()) {
                    keeper.await(
                            () -> running.isStopping() || keeper.state() == State.TRUSTED && free.get() > 0,
                            Core.ALWAYS);
                    String session = keeper.session();
                    if (running.isStopping() || session == null) continue;
                    long noted = keeper.asks();
                    int wanted = free.get();
                    int got = 0;
                    double retry = Keeper.now() + Math.min(1_000, keeper.ttl / 6);
                    try {
                        if (unknown) unclaimUnknown(session);
                        got = claim(session, Math.min(wanted, 1_000));
                        retry = Core.ALWAYS;
                    } catch (SQLException error) {
                        unknown |= Line.isBroken(error);
                        boolean over = error instanceof LeaseException || LeaseException.isEnd(error.getSQLState());
                        if (!over && !Keeper.passes(error)) throw error;
                    }
                    if (got >= Math.min(wanted, 1_000)) continue;
                    int left = wanted - got;
                    keeper.await(() -> running.isStopping() || keeper.asks() > noted || free.get() > left, retry);
                }
            } finally {
                keeper.await(() -> free.get() == concurrency, Core.ALWAYS);
            }
        }

        private int claim(String session, int wanted) throws SQLException {
            List<Claim> claims = keeper.once(session, c -> Line.rows(c, Worker::read, CLAIM, queue, session, wanted));
            for (Claim claim : claims) {
                Item item = new Item(keeper, queue, session, claim);
                if (!keeper.begin(item)) {
                    unclaim(session, claim);
                    continue;
                }
                free.decrementAndGet();
                begun.add(claim);
                Line.daemon("eskit-lease " + queue + " " + claim.id, () -> handle(item))
                        .start();
            }
            return claims.size();
        }

        private static Claim read(java.sql.ResultSet row) throws SQLException {
            return new Claim(row.getLong(1), row.getString(2), row.getString(3), row.getInt(4), row.getLong(5));
        }

        private void unclaimUnknown(String session) throws SQLException {
            Set<Claim> claims =
                    new HashSet<>(keeper.once(session, c -> Line.rows(c, Worker::read, CLAIMED, queue, session)));
            claims.removeAll(begun);
            claims.forEach(claim -> unclaim(session, claim));
            unknown = false;
        }

        private void unclaim(String session, Claim claim) {
            try {
                keeper.repeat(session, c -> Line.run(c, UNCLAIM, new Long[] {claim.id}, claim.fence));
            } catch (SQLException ended) { // the item is free, or was never claimed
            }
        }

        private void handle(Item item) {
            try {
                item.run(() -> {
                    try (Connection connection = source.getConnection()) {
                        return Fenced.transact(item, connection, transaction -> {
                            handler.handle(item, transaction);
                            String done = "SELECT eskit_lease.item_done(?::bigint[], ?::bigint)";
                            return Line.run(transaction, done, new Long[] {item.id()}, item.fence());
                        });
                    }
                });
            } catch (Throwable error) {
                keeper.failed("item " + item.id() + " of " + queue, error);
                fail(item, String.valueOf(error));
            } finally {
                item.finish();
                begun.remove(item.claim);
                free.incrementAndGet();
                keeper.end(item);
            }
        }

        private void fail(Item item, String error) {
            String sql = "SELECT eskit_lease.item_fail(?::bigint, ?::bigint, ?::text)";
            try {
                keeper.repeat(item.session(), c -> Line.run(c, sql, item.id(), item.fence(), error));
            } catch (SQLException ended) { // LF001: the item was done after all, or is free with its session
            }
        }
    }
}
