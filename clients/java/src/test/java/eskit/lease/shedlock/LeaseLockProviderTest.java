package eskit.lease.shedlock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.zaxxer.hikari.HikariDataSource;
import java.net.URI;
import java.sql.SQLException;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.UUID;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import net.javacrumbs.shedlock.core.DefaultLockingTaskExecutor;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.LockExtender;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.support.LockException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;

/**
 * The cases of ShedLock's AbstractLockProviderIntegrationTest, AbstractExtensibleLockProviderIntegrationTest and
 * FuzzTester, written anew; those that lock for 50 ms or less lock for a second. Then what a lease adds.
 */
@EnabledIfEnvironmentVariable(named = "DATABASE_URL", matches = ".+")
@Timeout(60)
class LeaseLockProviderTest {
    private static final Duration SECOND = Duration.ofSeconds(1), LONG = Duration.ofMinutes(5);
    private final String name = "java-shedlock-" + UUID.randomUUID();
    private HikariDataSource source;
    private LeaseLockProvider provider;

    @BeforeEach
    void open() {
        source = pool(8);
        provider = new LeaseLockProvider(source, "me");
    }

    @AfterEach
    void close() {
        source.close();
    }

    private static HikariDataSource pool(int size) {
        HikariDataSource pool = new HikariDataSource();
        URI url = URI.create(System.getenv("DATABASE_URL"));
        pool.setJdbcUrl("jdbc:postgresql://" + url.getHost() + ":" + url.getPort() + url.getPath());
        pool.setUsername(url.getUserInfo().split(":")[0]);
        pool.setPassword(url.getUserInfo().split(":")[1]);
        pool.setMaximumPoolSize(size);
        return pool;
    }

    private static LockConfiguration of(String name, Duration atMost, Duration atLeast) {
        return new LockConfiguration(Instant.now(), name, atMost, atLeast);
    }

    private Optional<SimpleLock> lock(Duration atMost, Duration atLeast) {
        return provider.lock(of(name, atMost, atLeast));
    }

    private SimpleLock locked(Duration atMost, Duration atLeast) {
        return lock(atMost, atLeast).orElseThrow();
    }

    private boolean isLocked() throws SQLException {
        try (var connection = source.getConnection();
                var statement = connection.prepareStatement(
                        "SELECT FROM eskit_lease.leases WHERE resource = ? AND state = 'held'")) {
            statement.setString(1, name);
            return statement.executeQuery().next();
        }
    }

    @Test
    void locksAndUnlocks() throws Exception {
        for (int i = 0; i < 10; i++) {
            SimpleLock lock = locked(LONG, Duration.ZERO);
            assertTrue(isLocked());
            assertTrue(lock(LONG, Duration.ZERO).isEmpty());
            provider.lock(of(name + "-2", LONG, Duration.ZERO)).orElseThrow().unlock();
            lock.unlock();
            assertFalse(isLocked());
        }
    }

    @Test
    void endsAtMostThen() throws Exception {
        locked(Duration.ofMillis(50), Duration.ZERO); // is rounded up to min_ttl
        assertTrue(isLocked());
        Thread.sleep(1_005);
        assertFalse(isLocked());
        locked(SECOND, Duration.ZERO).unlock();
    }

    @Test
    void lastsAtLeastSoLong() throws Exception {
        locked(Duration.ofSeconds(4), Duration.ofSeconds(2)).unlock();
        assertTrue(lock(LONG, Duration.ZERO).isEmpty());
        Thread.sleep(2_000);
        locked(LONG, Duration.ZERO).unlock();
    }

    @Test
    void fuzz() throws Exception {
        int threads = 8, iterations = 100, few = 10;
        int[] counters = new int[2]; // guarded by the locks alone
        var executor = Executors.newFixedThreadPool(threads);
        List<Future<?>> tasks = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            int job = i % 2, times = i == 0 ? few : iterations;
            tasks.add(executor.submit(() -> {
                for (int done = 0; done < times; ) {
                    var lock = provider.lock(of(name + job, LONG, Duration.ofMillis(5)));
                    if (lock.isEmpty()) continue;
                    int seen = counters[job];
                    Thread.sleep(1);
                    counters[job] = seen + 1;
                    lock.get().unlock();
                    done++;
                }
                return null;
            }));
        }
        for (Future<?> task : tasks) task.get();
        executor.shutdown();
        assertEquals(threads / 2 * iterations, counters[1]);
        assertEquals((threads / 2 - 1) * iterations + few, counters[0]);
    }

    @Test
    void isExtended() throws Exception {
        SimpleLock lock = locked(SECOND, Duration.ZERO);
        SimpleLock extended = lock.extend(Duration.ofSeconds(10), Duration.ZERO).orElseThrow();
        assertThrows(IllegalStateException.class, () -> lock.extend(LONG, Duration.ZERO));
        assertThrows(IllegalStateException.class, lock::unlock);
        Thread.sleep(1_100);
        assertTrue(isLocked());
        SimpleLock again = extended.extend(SECOND, Duration.ZERO).orElseThrow();
        Thread.sleep(1_100);
        assertFalse(isLocked());
        again.unlock();
    }

    @Test
    void isExtendedAtLeast() throws Exception {
        SimpleLock lock = locked(Duration.ofSeconds(10), Duration.ZERO);
        lock.extend(Duration.ofSeconds(10), Duration.ofSeconds(2)).orElseThrow().unlock();
        assertTrue(isLocked());
        Thread.sleep(2_100);
        assertFalse(isLocked());
    }

    @Test
    void whatHasEndedIsNotExtended() throws Exception {
        SimpleLock unlocked = locked(SECOND, Duration.ZERO);
        unlocked.unlock();
        assertThrows(IllegalStateException.class, () -> unlocked.extend(LONG, Duration.ZERO));
        SimpleLock expired = locked(SECOND, Duration.ZERO);
        Thread.sleep(1_005);
        assertTrue(expired.extend(LONG, Duration.ZERO).isEmpty());
        assertFalse(isLocked());
    }

    @Test
    void unlockingAfterTheEndTellsNothing() throws Exception {
        SimpleLock lock = locked(SECOND, Duration.ZERO);
        Thread.sleep(1_005);
        SimpleLock next = locked(LONG, Duration.ZERO);
        lock.unlock();
        assertTrue(isLocked());
        next.unlock();
    }

    @Test
    void tasksRunOnce() throws Exception {
        AtomicInteger ran = new AtomicInteger();
        for (int host = 0; host < 3; host++) {
            var executor = new DefaultLockingTaskExecutor(new LeaseLockProvider(source, "host-" + host));
            executor.executeWithLock(
                    (Runnable) () -> {
                        LockExtender.extendActiveLock(Duration.ofSeconds(10), Duration.ofSeconds(5));
                        ran.incrementAndGet();
                    },
                    of(name, SECOND, SECOND));
        }
        assertEquals(1, ran.get());
    }

    @Test
    void tellsWhatTheServerRefuses() {
        var error = assertThrows(LockException.class, () -> lock(Duration.ofHours(2), Duration.ZERO));
        assertEquals("22023", ((SQLException) error.getCause()).getSQLState()); // beyond max_ttl
    }

    @Test
    void aKilledProcessKeepsItToTheEnd() throws Exception {
        Process process = new ProcessBuilder(
                        "java", "-cp", System.getProperty("java.class.path"), Holder.class.getName(), name)
                .redirectError(ProcessBuilder.Redirect.INHERIT)
                .start();
        assertEquals("locked", process.inputReader().readLine());
        long began = System.nanoTime();
        process.destroyForcibly().waitFor();
        while (lock(LONG, Duration.ZERO).isEmpty()) Thread.sleep(20);
        double seconds = (System.nanoTime() - began) / 1e9;
        assertTrue(seconds > 3.5 && seconds < 5, "it was free after " + seconds + " s");
    }

    /** Locks for 4 s, and hangs. */
    static final class Holder {
        public static void main(String[] name) throws Exception {
            new LeaseLockProvider(pool(1))
                    .lock(of(name[0], Duration.ofSeconds(4), Duration.ZERO))
                    .orElseThrow();
            System.out.println("locked");
            Thread.sleep(60_000);
        }
    }

    @Test
    void aTerminatedConnectionIsReplaced() throws Exception {
        try (HikariDataSource one = pool(1);
                var admin = source.getConnection()) {
            var alone = new LeaseLockProvider(one, "me");
            int pid;
            try (var connection = one.getConnection();
                    var row = connection.createStatement().executeQuery("SELECT pg_backend_pid()")) {
                row.next();
                pid = row.getInt(1);
            }
            admin.createStatement().execute("SELECT pg_terminate_backend(" + pid + ")");
            SimpleLock lock = alone.lock(of(name, LONG, Duration.ZERO)).orElseThrow();
            lock.unlock();
            assertFalse(isLocked());
        }
    }
}
