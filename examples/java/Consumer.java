import java.sql.*;
import java.util.*;

/** A competing consumer, with JDBC: applies the events of its partitions. ../README.md explains the steps (1) to (9). */
public class Consumer {
    static final Map<String, String> SETTINGS = System.getenv();
    static final String GROUP = SETTINGS.getOrDefault("CONSUMER_GROUP", "ledger"), TTL = SETTINGS.getOrDefault("TTL", "10");
    static final String CONSUMER = SETTINGS.getOrDefault("CONSUMER", "java-" + java.lang.management.ManagementFactory.getRuntimeMXBean().getName());

    static final String HEARTBEAT = "SELECT alive, trust_ms, revision, reason, retry_ms FROM eskit_lease.session_watch(?, 'events')"; // it watches, too
    static final String WAIT = "SELECT alive, trust_ms, revision, reason, retry_ms FROM eskit_lease.session_wait(?, ?, ?::interval)";
    static final String RELEASE = "SELECT eskit_lease.group_release(?, partition, fence) FROM eskit_lease.group_assignment(?, ?)";
    static final String OWNED = """
        SELECT array_agg(partition), array_agg(fence) FROM eskit_lease.group_assignment(?, ?) WHERE state = 'owned'""";
    static final String NEWS = """
        SELECT mine.* FROM unnest(?::int[], ?::bigint[]) AS mine (partition, fence), eskit_lease.cursor_position(?, partition) AS done
        WHERE EXISTS (SELECT FROM events AS e WHERE e.partition = mine.partition AND e.position > done
                      AND e.position < eskit_lease.position_horizon()) ORDER BY random()""";
    static final String READ = """
        SELECT position, account, cents, done FROM eskit_lease.cursor_position(?, ?) AS done, events WHERE partition = ? AND position > done
        AND position < eskit_lease.position_horizon() ORDER BY position LIMIT 50""";
    static final String COMMIT = "SELECT eskit_lease.cursor_commit(?, ?, ?, ?, ?)";
    static final String APPLY = "INSERT INTO ledger (position, account, cents, consumer) VALUES (?, ?, ?, ?)";

    static volatile boolean stopping;

    Connection db;
    Object session;
    long revision, askedAt, trustedUntil, nextHeartbeat;

    List<Object[]> query(String sql, Object... values) throws SQLException {
        List<Object[]> rows = new ArrayList<>();
        try (PreparedStatement statement = db.prepareStatement(sql)) {
            for (int i = 0; i < values.length; i++) statement.setObject(i + 1, values[i]);
            ResultSet answer = statement.execute() ? statement.getResultSet() : null;
            while (answer != null && answer.next()) {
                Object[] row = new Object[answer.getMetaData().getColumnCount()];
                for (int i = 0; i < row.length; i++) row[i] = answer.getObject(i + 1);
                rows.add(row);
            }
        }
        return rows;
    }

    /** Asks whether the session lives, for its trust_ms, revision and reason. */
    void ask(String sql, Object... values) throws SQLException, InterruptedException {
        long started = System.nanoTime(); // (3) from before the call, as the answer may be long on its way
        Object[] answer = query(sql, values).get(0);
        if (!(Boolean) answer[0]) throw new SQLException("the session has ended: " + answer[3]);
        trustedUntil = started + (Integer) answer[1] * 1_000_000L;
        nextHeartbeat = started + (Integer) answer[1] * 1_000_000L / 3;
        revision = (Long) answer[2];
        if (answer[3].equals("wait_limit")) Thread.sleep((Integer) answer[4]); // answered at once, as too many are waiting: wait here
    }

    boolean trusted() {
        return System.nanoTime() - trustedUntil < 0;
    }

    void consume(Connection db) throws SQLException, InterruptedException {
        this.db = db;
        session = query("SELECT session FROM eskit_lease.session_open(?, ?::interval, takeover => true)", CONSUMER, TTL + " s").get(0)[0]; // (1)
        ask(HEARTBEAT, session);
        query("SELECT eskit_lease.group_join(?, ?)", GROUP, session); // (2)
        Object[] owned = null; // arrays of partitions and of their fences
        while (!stopping) {
            if (askedAt != revision) { // (4)
                askedAt = revision;
                query(RELEASE + " WHERE state = 'revoking'", GROUP, GROUP, session); // no work on them is in hand
                owned = query(OWNED, GROUP, session).get(0);
            }
            List<Object[]> news = query(NEWS, owned[0], owned[1], GROUP);
            for (Object[] share : news) {
                if (stopping || askedAt != revision || !trusted()) break; // (3)
                applyBatch(share[0], share[1]);
                if (System.nanoTime() - nextHeartbeat >= 0) ask(HEARTBEAT, session); // (7)
            }
            if (!news.isEmpty() && trusted()) ask(HEARTBEAT, session); else ask(WAIT, session, revision, news.isEmpty() ? null : "100 ms");
        }
        query("SELECT eskit_lease.session_drain(?)", session); // (8)
        query(RELEASE, GROUP, GROUP, session);
        query("SELECT eskit_lease.session_close(?)", session);
    }

    /** (5) Applies the next events of a partition and moves its position, in one transaction under the fence. */
    void applyBatch(Object partition, Object fence) throws SQLException {
        db.setAutoCommit(false);
        try {
            List<Object[]> batch = query(READ, GROUP, partition, partition);
            if (!batch.isEmpty() && (Boolean) query(COMMIT, GROUP, partition, batch.get(batch.size() - 1)[0], fence, batch.get(0)[3]).get(0)[0]) {
                for (Object[] event : batch) query(APPLY, event[0], event[1], event[2], CONSUMER);
            }
            db.commit();
        } catch (SQLException error) { // (6)
            if (!List.of("LF001", "55P03", "40001").contains(String.valueOf(error.getSQLState()))) throw error;
            db.rollback();
            askedAt = 0; // the assignment says how to go on
        }
        db.setAutoCommit(true);
    }

    public static void main(String[] args) throws InterruptedException {
        Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> { // SIGTERM ends the process as soon as this ends
            stopping = true;
            try { main.join(); } catch (InterruptedException ignored) { }
        }));
        Properties properties = new Properties();
        // Named statements may not work through PgBouncer in transaction mode, and by default JDBC waits without end.
        properties.putAll(Map.of("prepareThreshold", "0", "connectTimeout", TTL, "socketTimeout", TTL));
        while (!stopping) {
            try (Connection db = DriverManager.getConnection("jdbc:" + SETTINGS.get("DATABASE_URL"), properties)) {
                new Consumer().consume(db);
            } catch (SQLException error) { // (9)
                System.err.println(CONSUMER + " begins anew: " + error.getMessage());
                Thread.sleep(1000);
            }
        }
    }
}
