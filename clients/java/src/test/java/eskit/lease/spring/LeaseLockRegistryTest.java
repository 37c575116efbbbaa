package eskit.lease.spring;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotSame;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import eskit.lease.Leases;
import java.sql.Connection;
import java.time.Duration;
import java.util.ArrayList;
import java.util.ConcurrentModificationException;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.locks.Lock;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;
import org.springframework.dao.CannotAcquireLockException;
import org.springframework.integration.support.locks.DistributedLock;

/** The cases of Spring Integration's JdbcLockRegistryTests, written anew. Then what the end of a lease does. */
@EnabledIfEnvironmentVariable(named = "DATABASE_URL", matches = ".+")
@Timeout(60)
class LeaseLockRegistryTest {
    private static final String URL = System.getenv("DATABASE_URL");
    private final String key = "java-spring-" + UUID.randomUUID();
    private final ExecutorService threads = Executors.newCachedThreadPool();
    private Leases leases, others;
    private LeaseLockRegistry registry, elsewhere;
    private DistributedLock lock;
    private Connection admin;

    @BeforeEach
    void open() throws Exception {
        leases = Leases.builder(URL).ttl(Duration.ofSeconds(2)).build();
        others = Leases.builder(URL).ttl(Duration.ofSeconds(2)).build();
        registry = new LeaseLockRegistry(leases);
        elsewhere = new LeaseLockRegistry(others);
        lock = registry.obtain(key);
        admin = Leases.connect(URL);
    }

    @AfterEach
    void close() throws Exception {
        threads.shutdownNow();
        leases.close();
        others.close();
        admin.close();
    }

    private <T> T inAThread(java.util.concurrent.Callable<T> work) throws Exception {
        return threads.submit(work).get(10, TimeUnit.SECONDS);
    }

    /** Ends the session of `leases`, as another process or an administrator would. */
    private void endTheSession() throws Exception {
        try (var end = admin.prepareStatement("SELECT eskit_lease.session_close(?::uuid)")) {
            end.setString(1, leases.session().orElseThrow());
            end.execute();
        }
    }

    @Test
    void locksAgainAndAgain() throws Exception {
        for (int i = 0; i < 5; i++) {
            lock.lock();
            lock.unlock();
            lock.lockInterruptibly();
            lock.unlock();
            assertTrue(lock.tryLock());
            lock.unlock();
            assertTrue(lock.tryLock(1, TimeUnit.SECONDS));
            assertFalse(elsewhere.obtain(key).tryLock());
            lock.unlock();
        }
    }

    @Test
    void isReentrant() throws Exception {
        lock.lock();
        Lock again = registry.obtain(key);
        assertSame(lock, again);
        again.lock();
        again.lockInterruptibly();
        assertTrue(again.tryLock());
        assertTrue(again.tryLock(1, TimeUnit.SECONDS));
        for (int i = 0; i < 4; i++) again.unlock();
        assertFalse(elsewhere.obtain(key).tryLock());
        again.unlock();
        assertThrows(IllegalMonitorStateException.class, again::unlock);
    }

    @Test
    void locksOfTwoKeysAreIndependent() throws Exception {
        Lock second = registry.obtain(key + "-2");
        assertNotSame(lock, second);
        lock.lockInterruptibly();
        assertTrue(inAThread(() -> {
            second.lockInterruptibly();
            second.unlock();
            return true;
        }));
        lock.unlock();
        DistributedLock prefixed = new LeaseLockRegistry(others, "app:").obtain(key);
        lock.lock();
        assertTrue(prefixed.tryLock());
        prefixed.unlock();
        lock.unlock();
    }

    @Test
    void theSecondThreadFails() throws Exception {
        lock.lockInterruptibly();
        for (LeaseLockRegistry of : List.of(registry, elsewhere)) {
            assertFalse(inAThread(() -> of.obtain(key).tryLock()));
            assertFalse(inAThread(() -> of.obtain(key).tryLock(200, TimeUnit.MILLISECONDS)));
            Exception error = assertThrows(
                    Exception.class,
                    () -> inAThread(() -> {
                        of.obtain(key).unlock();
                        return null;
                    }));
            assertTrue(error.getCause() instanceof IllegalMonitorStateException);
            assertTrue(error.getCause().getMessage().contains("own"));
        }
        lock.unlock();
    }

    @Test
    void threadsAndRegistriesFollowOneAnother() throws Exception {
        int[] counter = new int[1]; // guarded by the lock alone
        List<Future<?>> tasks = new ArrayList<>();
        for (int i = 0; i < 4; i++) {
            LeaseLockRegistry of = i % 2 == 0 ? registry : elsewhere;
            tasks.add(threads.submit(() -> {
                for (int n = 0; n < 25; n++) {
                    of.executeLocked(key, () -> {
                        int seen = counter[0];
                        Thread.sleep(1);
                        counter[0] = seen + 1;
                    });
                }
                return null;
            }));
        }
        for (Future<?> task : tasks) task.get(30, TimeUnit.SECONDS);
        assertEquals(100, counter[0]);
        lock.lock();
        assertThrows(
                TimeoutException.class, () -> elsewhere.executeLocked(key, Duration.ofMillis(100), () -> "too late"));
        lock.unlock();
    }

    @Test
    void waitsUntilTheUnlockOrAnInterrupt() throws Exception {
        lock.lock();
        CountDownLatch begun = new CountDownLatch(1);
        CompletableFuture<Thread> waiter = new CompletableFuture<>();
        Future<Boolean> interrupted = threads.submit(() -> {
            waiter.complete(Thread.currentThread());
            assertThrows(InterruptedException.class, elsewhere.obtain(key)::lockInterruptibly);
            return true;
        });
        Future<Boolean> patient = threads.submit(() -> {
            Thread.currentThread().interrupt(); // lock() keeps it for later
            begun.countDown();
            elsewhere.obtain(key).lock();
            boolean kept = Thread.interrupted();
            elsewhere.obtain(key).unlock();
            return kept;
        });
        begun.await();
        Thread.sleep(200);
        waiter.get().interrupt();
        assertTrue(interrupted.get(10, TimeUnit.SECONDS));
        assertFalse(patient.isDone());
        lock.unlock();
        assertTrue(patient.get(10, TimeUnit.SECONDS));
    }

    @Test
    void endsAfterATtlOfItsOwn() throws Exception {
        lock.lock(Duration.ofMillis(200));
        lock.unlock();
        assertTrue(lock.tryLock(Duration.ofSeconds(1), Duration.ofMillis(200)));
        registry.renewLock(key, Duration.ofMillis(600));
        Lock other = elsewhere.obtain(key);
        assertFalse(inAThread(() -> other.tryLock(300, TimeUnit.MILLISECONDS)));
        Future<Boolean> next = threads.submit(() -> other.tryLock(2, TimeUnit.SECONDS));
        assertThrows(InterruptedException.class, () -> Thread.sleep(5_000));
        assertTrue(next.get(2, TimeUnit.SECONDS));
        assertThrows(ConcurrentModificationException.class, lock::unlock);
        assertFalse(Thread.currentThread().isInterrupted());
    }

    @Test
    void renewsOnlyWhatTheThreadHolds() throws Exception {
        assertThrows(IllegalMonitorStateException.class, () -> registry.renewLock(key));
        assertThrows(IllegalMonitorStateException.class, () -> registry.renewLock("never obtained"));
        lock.lock();
        registry.renewLock(key);
        lock.unlock();
    }

    @Test
    void forgetsWhatIsUnused() throws Exception {
        Lock unused = registry.obtain(key + "-2");
        lock.lock();
        registry.expireUnusedOlderThan(60_000);
        assertSame(unused, registry.obtain(key + "-2"));
        registry.expireUnusedOlderThan(-1);
        assertSame(lock, registry.obtain(key));
        Lock successor = registry.obtain(key + "-2");
        assertNotSame(unused, successor);
        unused.lock();
        assertFalse(inAThread(() -> successor.tryLock(100, TimeUnit.MILLISECONDS)));
        unused.unlock();
        lock.unlock();
    }

    @Test
    void aLostLeaseInterruptsTheHolder() throws Exception {
        lock.lock();
        endTheSession();
        assertThrows(InterruptedException.class, () -> Thread.sleep(5_000));
        assertThrows(IllegalMonitorStateException.class, () -> registry.renewLock(key));
        assertThrows(ConcurrentModificationException.class, lock::unlock);
        lock.lock(); // under the next session
        endTheSession();
        assertThrows(InterruptedException.class, () -> Thread.sleep(5_000));
        assertFalse(lock.tryLock()); // is told of the loss, and holds nothing any more
        assertThrows(IllegalMonitorStateException.class, lock::unlock);
        lock.lock();
        endTheSession();
        assertThrows(InterruptedException.class, () -> Thread.sleep(5_000));
        assertThrows(CannotAcquireLockException.class, lock::lock);
        assertTrue(lock.tryLock(10, TimeUnit.SECONDS));
        lock.unlock();
        assertFalse(Thread.currentThread().isInterrupted());
    }

    @Test
    void aKeeperThatDrainsGrantsNothing() throws Exception {
        leases.close();
        assertFalse(lock.tryLock());
        long began = System.nanoTime();
        assertFalse(lock.tryLock(200, TimeUnit.MILLISECONDS));
        assertTrue(System.nanoTime() - began > 190_000_000);
        assertThrows(IllegalStateException.class, lock::lock);
        assertThrows(UnsupportedOperationException.class, lock::newCondition);
    }
}
