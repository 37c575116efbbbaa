package eskit.lease.shedlock;

import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.time.Duration;
import java.util.Optional;
import java.util.UUID;
import java.util.concurrent.locks.LockSupport;
import javax.sql.DataSource;
import net.javacrumbs.shedlock.core.AbstractSimpleLock;
import net.javacrumbs.shedlock.core.ClockProvider;
import net.javacrumbs.shedlock.core.ExtensibleLockProvider;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.support.LockException;
import net.javacrumbs.shedlock.support.Utils;

/**
 * Locks for ShedLock: leases without a session. A lock lasts until lockAtMostFor by the server's clock, whether its
 * process lives or not, and so it needs no keeper. lockAtLeastFor is a release with grace, which outlives the process.
 */
public final class LeaseLockProvider implements ExtensibleLockProvider {
    private static final String ACQUIRE =
            "SELECT granted, fence, reason FROM eskit_lease.lock_acquire(?::text, ?::text,"
                    + " greatest(?::interval, current_setting('eskit_lease.min_ttl')::interval), ?::uuid)";
    private static final String RELEASE = "SELECT eskit_lease.lease_release(?::text, ?::bigint, ?::interval)";
    private static final int BUSY_TRIES = 5;
    private static final Duration BUSY_PAUSE = Duration.ofMillis(20);

    private record Grant(boolean granted, long fence, String reason) {}

    private final DataSource source;
    private final String owner;

    /**
     * Names this host as the owner of its locks.
     *
     * @param source gives connections of its own, which take part in no transaction of the application
     */
    public LeaseLockProvider(DataSource source) {
        this(source, Utils.getHostname());
    }

    /**
     * Makes a provider.
     *
     * @param source gives connections of its own, which take part in no transaction of the application
     * @param owner what views and refusals show as the holder
     */
    public LeaseLockProvider(DataSource source, String owner) {
        this.source = source;
        this.owner = owner;
    }

    @Override
    public Optional<SimpleLock> lock(LockConfiguration configuration) {
        String ttl = interval(Duration.between(ClockProvider.now(), configuration.getLockAtMostUntil()));
        UUID request = UUID.randomUUID();
        for (int tries = 1; ; tries++) {
            Grant grant = call(
                    row -> new Grant(row.getBoolean(1), row.getLong(2), row.getString(3)),
                    ACQUIRE,
                    configuration.getName(),
                    owner,
                    ttl,
                    request);
            if (grant.granted) return Optional.of(new Lock(configuration, grant.fence));
            // Right after the end of a lock another transaction may still be ending it.
            if (!grant.reason.equals("busy") || tries == BUSY_TRIES) return Optional.empty();
            LockSupport.parkNanos(BUSY_PAUSE.toNanos());
        }
    }

    private final class Lock extends AbstractSimpleLock {
        private final long fence;

        Lock(LockConfiguration configuration, long fence) {
            super(configuration);
            this.fence = fence;
        }

        @Override
        protected void doUnlock() {
            Duration left = Duration.between(ClockProvider.now(), lockConfiguration.getLockAtLeastUntil());
            release(left.isNegative() || left.isZero() ? "0" : interval(left));
        }

        /** A release with grace holds a lease for that time, without a holder: this is what an extended lock needs. */
        @Override
        protected Optional<SimpleLock> doExtend(LockConfiguration extended) {
            boolean held = release(interval(extended.getLockAtMostFor()));
            return held ? Optional.of(new Lock(extended, fence)) : Optional.empty();
        }

        private boolean release(String grace) {
            return call(row -> row.getBoolean(1), RELEASE, lockConfiguration.getName(), fence, grace);
        }
    }

    private static String interval(Duration time) {
        return Math.max(1, time.toMillis()) + " ms";
    }

    private interface Row<T> {
        T of(ResultSet row) throws SQLException;
    }

    /** Calls once more if the connection breaks: each of these calls may be repeated. */
    private <T> T call(Row<T> map, String sql, Object... values) {
        try {
            try {
                return callOnce(map, sql, values);
            } catch (SQLException error) {
                if (!isBroken(error)) throw error;
                return callOnce(map, sql, values);
            }
        } catch (SQLException error) {
            throw new LockException("the lock of " + values[0] + ": " + error.getMessage(), error);
        }
    }

    private static boolean isBroken(SQLException error) {
        String state = String.valueOf(error.getSQLState());
        return state.startsWith("08") || state.startsWith("57P");
    }

    private <T> T callOnce(Row<T> map, String sql, Object... values) throws SQLException {
        try (Connection connection = source.getConnection()) {
            if (!connection.getAutoCommit()) connection.setAutoCommit(true);
            try (PreparedStatement statement = connection.prepareStatement(sql)) {
                for (int i = 0; i < values.length; i++) statement.setObject(i + 1, values[i]);
                try (ResultSet row = statement.executeQuery()) {
                    row.next();
                    return map.of(row);
                }
            }
        }
    }
}
