import eskit.lease.*;
import java.sql.*;
import java.time.Duration;
import java.util.*;

/** A competing consumer: applies the events of its partitions. ../README.md explains the steps. */
class Consumer {
    static final Map<String, String> SETTINGS = System.getenv();
    static final String CONSUMER = SETTINGS.getOrDefault("CONSUMER", "java-" + UUID.randomUUID());
    static final String URL = SETTINGS.get("DATABASE_URL"), TTL = SETTINGS.getOrDefault("TTL", "10");
    // Poolers may know no named statements, and by default JDBC waits without end.
    static final String LIMITS = "&prepareThreshold=0&connectTimeout=" + TTL + "&socketTimeout=" + TTL;
    static final String READ = "SELECT position, account, cents FROM events WHERE partition = ? AND position > ?"
        + " AND position < eskit_lease.position_horizon() ORDER BY position LIMIT 50";
    static final String WRITE = "INSERT INTO ledger (position, account, cents, consumer) VALUES (?, ?, ?, ?)";

    public static void main(String[] arguments) throws Exception {
        String group = SETTINGS.getOrDefault("CONSUMER_GROUP", "ledger");
        Duration ttl = Duration.ofSeconds(Long.parseLong(TTL));
        Leases leases = Leases.builder(URL).name(CONSUMER).takeover(true).ttl(ttl).watch("events").build();
        var member = leases.join(group, Consumer::consume).ended().toCompletableFuture();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            leases.drain(ttl);
            Runtime.getRuntime().halt(member.isCompletedExceptionally() ? 1 : 0); // SIGTERM would end with 143
        }));
        member.join();
    }

    /** Runs on a thread for each partition that the process owns. After an error the library calls it again. */
    static void consume(Partition partition) throws Exception {
        try (var db = Leases.connect(URL + LIMITS)) {
            while (!partition.isStopping())
                if (!partition.transaction(db, tx -> applyBatch(partition, tx))) partition.news();
        }
    }

    /** Returns whether there were events. */
    static boolean applyBatch(Partition partition, Connection tx) throws SQLException {
        long done = partition.position(tx), last = done;
        try (var read = tx.prepareStatement(READ); var write = tx.prepareStatement(WRITE)) {
            read.setInt(1, partition.partition());
            read.setLong(2, done);
            for (var event = read.executeQuery(); event.next(); last = event.getLong(1)) {
                for (int column = 1; column <= 3; column++) write.setObject(column, event.getObject(column));
                write.setString(4, CONSUMER);
                write.addBatch();
            }
            if (last > done && partition.commit(tx, last, done)) write.executeBatch(); // false: the group is there already
        }
        return last > done;
    }
}
