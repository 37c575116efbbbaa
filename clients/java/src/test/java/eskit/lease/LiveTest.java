package eskit.lease;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import eskit.lease.LeaseException.Lost;
import eskit.lease.LeaseException.Refused;
import eskit.lease.LeaseException.Unsure;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;
import org.postgresql.ds.PGSimpleDataSource;

/** Each verb and each refusal, against the server of DATABASE_URL. */
@EnabledIfEnvironmentVariable(named = "DATABASE_URL", matches = ".+")
@Timeout(60)
class LiveTest {
    private static final String URL = System.getenv("DATABASE_URL");
    private final String name = "java-test-" + UUID.randomUUID();
    private Leases leases;
    private PGSimpleDataSource source;
    private Connection admin;

    @BeforeEach
    void open() throws Exception {
        Properties user = new Properties();
        source = new PGSimpleDataSource();
        source.setUrl(Leases.jdbcUrl(URL, user));
        source.setUser(user.getProperty("user"));
        source.setPassword(user.getProperty("password"));
        admin = source.getConnection();
        leases = Leases.builder(URL).name(name).ttl(Duration.ofSeconds(2)).build();
    }

    @AfterEach
    void close() throws Exception {
        leases.close();
        admin.close();
    }

    private static void sql(Connection connection, String sql, Object... values) throws SQLException {
        Line.rows(connection, row -> null, sql, values);
    }

    private long count(String sql, Object... values) throws SQLException {
        return Line.row(admin, row -> row.getLong(1), sql, values);
    }

    private boolean held(String resource) throws SQLException {
        return count("SELECT count(*) FROM eskit_lease.leases WHERE resource = ? AND state = 'held'", resource) > 0;
    }

    private void force(Scope scope) throws SQLException {
        sql(admin, "SELECT eskit_lease.lease_force_release(?, ?, 'test')", scope.name(), scope.fence());
    }

    @Test
    void leadsAndReleases() throws Exception {
        try (Lead lead = leases.lead(name)) {
            assertTrue(lead.isTrusted());
            assertEquals(
                    1,
                    lead.<Integer, SQLException>transaction(
                            source, tx -> Line.row(tx, row -> row.getInt(1), "SELECT 1")));
            assertTrue(held(name));
        }
        assertFalse(held(name));
    }

    @Test
    void waitersFollowInTheProcessUnderNewFences() throws Exception {
        Lead first = leases.lead(name);
        assertTrue(leases.tryLead(name).isEmpty());
        assertTrue(leases.tryLead(name, Duration.ofMillis(50)).isEmpty());
        CompletableFuture<Lead> second = CompletableFuture.supplyAsync(() -> {
            try {
                return leases.lead(name);
            } catch (SQLException | InterruptedException error) {
                throw new IllegalStateException(error);
            }
        });
        Thread.sleep(100);
        assertFalse(second.isDone());
        first.close();
        try (Lead next = second.get(5, TimeUnit.SECONDS)) {
            assertNotEquals(first.fence(), next.fence());
        }
    }

    @Test
    void givesThePlaceUpWhenInterrupted() throws Exception {
        try (Leases other = Leases.builder(URL).build();
                Lead theirs = other.lead(name)) {
            assertTrue(leases.tryLead(name).isEmpty());
            CompletableFuture<Throwable> end = new CompletableFuture<>();
            Thread waiter = new Thread(() -> {
                try {
                    leases.lead(name).close();
                } catch (Throwable error) {
                    end.complete(error);
                }
            });
            waiter.start();
            long waiting = 0;
            while (waiting == 0)
                waiting = count("SELECT max(waiters) FROM eskit_lease.leases WHERE resource = ?", name);
            waiter.interrupt();
            assertTrue(end.get(5, TimeUnit.SECONDS) instanceof InterruptedException);
            while (waiting == 1)
                waiting = count("SELECT max(waiters) FROM eskit_lease.leases WHERE resource = ?", name);
            assertTrue(theirs.isTrusted());
        }
    }

    @Test
    void aForcedReleaseCancelsAndInterrupts() throws Exception {
        try (Lead lead = leases.lead(name)) {
            CountDownLatch called = new CountDownLatch(1);
            lead.onCancelled(called::countDown);
            force(lead);
            assertThrows(
                    Lost.class,
                    () -> lead.run(() -> {
                        Thread.sleep(10_000);
                        return null;
                    }));
            assertFalse(Thread.interrupted());
            assertTrue(called.await(1, TimeUnit.SECONDS));
            assertFalse(lead.isTrusted());
            assertFalse(lead.news());
        }
        assertFalse(held(name)); // neither the forced lease, nor one that asking again has got
    }

    @Test
    void refusesAStaleFence() throws Exception {
        try (Lead lead = leases.lead(name)) {
            admin.setAutoCommit(false);
            lead.guard(admin);
            admin.rollback();
            admin.setAutoCommit(true);
            force(lead);
            try (Connection transaction = source.getConnection()) {
                transaction.setAutoCommit(false);
                SQLException error = assertThrows(SQLException.class, () -> lead.guard(transaction));
                assertTrue(
                        error instanceof Lost || error instanceof Refused && "LF001".equals(error.getSQLState()),
                        error.toString());
            }
        }
    }

    @Test
    void refusesMisuse() throws Exception {
        Lead lead = leases.lead(name);
        assertThrows(IllegalStateException.class, () -> lead.guard(admin));
        lead.close();
        lead.close();
        assertThrows(Lost.class, () -> lead.transaction(source, tx -> null));
        assertThrows(
                IllegalStateException.class,
                () -> Leases.builder(URL).takeover(true).build());
        assertThrows(IllegalArgumentException.class, () -> leases.work(name, 0, source, (item, tx) -> {}));
        leases.close();
        leases.close();
        assertThrows(IllegalStateException.class, () -> leases.lead(name));
        assertThrows(IllegalStateException.class, () -> leases.once(name, attempt -> null));
        assertThrows(IllegalStateException.class, () -> leases.join(name, partition -> {}));
    }

    @Test
    void aFailedTransactionIsRolledBack() throws Exception {
        try (Lead lead = leases.lead(name);
                Connection connection = source.getConnection()) {
            assertThrows(
                    IllegalStateException.class,
                    () -> lead.transaction(connection, tx -> {
                        sql(tx, "SELECT eskit_lease.group_create(?, 1)", name + "-group");
                        throw new IllegalStateException("the work fails");
                    }));
            assertTrue(connection.getAutoCommit());
            assertEquals(0, count("SELECT count(*) FROM eskit_lease.groups WHERE group_name = ?", name + "-group"));
            SQLException own = assertThrows(
                    SQLException.class,
                    () -> lead.transaction(connection, tx -> Line.row(tx, row -> 0, "SELECT 1 / 0")));
            assertEquals("22012", own.getSQLState());
            assertFalse(own instanceof LeaseException);
        }
    }

    @Test
    void anUnknownCommitIsUnsureAndEndsTheScope() throws Exception {
        try (Lead lead = leases.lead(name);
                Connection connection = source.getConnection()) {
            Connection breaks = (Connection) Proxy.newProxyInstance(
                    LiveTest.class.getClassLoader(), new Class<?>[] {Connection.class}, (proxy, method, values) -> {
                        if (method.getName().equals("commit")) connection.abort(Runnable::run);
                        try {
                            return method.invoke(connection, values);
                        } catch (InvocationTargetException error) {
                            throw error.getCause();
                        }
                    });
            assertThrows(Unsure.class, () -> lead.transaction(breaks, tx -> null));
            assertFalse(lead.isTrusted());
        }
    }

    @Test
    void partitionsAreWorkedUntilTheCallerLeaves() throws Exception {
        sql(admin, "SELECT eskit_lease.group_create(?, 3)", name);
        Set<Integer> begun = ConcurrentHashMap.newKeySet();
        AtomicInteger interrupted = new AtomicInteger(), failures = new AtomicInteger();
        try (Running running = leases.join(name, partition -> {
            if (partition.partition() == 2 && failures.getAndIncrement() == 0)
                throw new IllegalStateException("begins anew");
            assertEquals(0, partition.<Long, SQLException>transaction(source, partition::position));
            assertTrue(partition.<Boolean, SQLException>transaction(source, tx -> partition.commit(tx, 5, 0)));
            SQLException moved = assertThrows(
                    SQLException.class, () -> partition.transaction(source, tx -> partition.commit(tx, 9, 7)));
            assertEquals("40001", moved.getSQLState());
            begun.add(partition.partition());
            try {
                Thread.sleep(60_000);
            } catch (InterruptedException cancelled) {
                interrupted.incrementAndGet();
            }
        })) {
            while (begun.size() < 3) Thread.sleep(10);
        }
        assertEquals(3, interrupted.get());
        assertFalse(held(name));
        sql(admin, "SELECT eskit_lease.group_drop(?)", name);
    }

    @Test
    void anUnknownGroupEndsTheMembership() throws Exception {
        var failed = leases.join(name, partition -> {}).ended().toCompletableFuture();
        Throwable error = assertThrows(Exception.class, () -> failed.get(5, TimeUnit.SECONDS))
                .getCause();
        assertEquals("42704", ((SQLException) error).getSQLState());
    }

    @Test
    void itemsAreDoneOrTriedAgain() throws Exception {
        sql(admin, "SELECT eskit_lease.queue_create(?, max_attempts => 2, retry_backoff => '10 ms')", name);
        for (String payload : List.of("1", "2", "3"))
            sql(admin, "SELECT eskit_lease.item_add(?, ?::jsonb)", name, payload);
        Set<String> handled = ConcurrentHashMap.newKeySet();
        try (Running running = leases.work(name, 2, source, (item, tx) -> {
            if (item.payload().equals("3")) throw new IllegalStateException("dies");
            if (item.payload().equals("2") && item.attempt() == 1) throw new IllegalStateException("again");
            handled.add(item.payload());
        })) {
            while (count("SELECT count(*) FROM eskit_lease.items WHERE queue = ?", name) > 0) Thread.sleep(10);
        }
        assertEquals(Set.of("1", "2"), handled);
        assertEquals(
                1, count("SELECT count(*) FROM eskit_lease.dead_items WHERE queue = ? AND error LIKE '%dies%'", name));
        sql(admin, "SELECT eskit_lease.queue_drop(?, items => true)", name);
    }

    @Test
    void aRunOnceKeyRunsOnce() throws Exception {
        assertEquals(new Attempt.Outcome(true, "done", "{\"a\": 1}"), leases.once(name, attempt -> "{\"a\": 1}"));
        assertEquals(new Attempt.Outcome(false, "done", "{\"a\": 1}"), leases.once(name, attempt -> "2"));
        assertThrows(
                java.io.IOException.class,
                () -> leases.once(name + "f", attempt -> {
                    throw new java.io.IOException("fails");
                }));
        assertEquals(new Attempt.Outcome(true, "done", null), leases.once(name + "f", attempt -> null)); // tried again
        assertThrows(
                Unsure.class,
                () -> leases.once(name + "u", attempt -> {
                    throw new Unsure(new SQLException("", "08006"));
                }));
        assertEquals("failed", leases.once(name + "u", attempt -> null).state());
    }

    @Test
    void drainLetsWorkFinish() throws Exception {
        Lead lead = leases.lead(name);
        CompletableFuture<Void> drained = CompletableFuture.runAsync(() -> leases.drain(Duration.ofSeconds(10)));
        while (!lead.isStopping()) Thread.sleep(5);
        assertTrue(lead.news());
        assertTrue(lead.isTrusted());
        lead.transaction(source, tx -> null);
        assertFalse(drained.isDone());
        lead.close();
        drained.get(2, TimeUnit.SECONDS);
        assertEquals(State.CLOSED, leases.state());
    }

    @Test
    void newsComesFromAWatchedTable() throws Exception {
        String table = "java_news_" + name.replace('-', '_');
        try (var statement = admin.createStatement()) {
            statement.execute(
                    "CREATE TABLE " + table + " (position bigint DEFAULT eskit_lease.position_next(), event int)");
            try (Leases watching = Leases.builder(URL).watch(table).build();
                    Lead lead = watching.lead(name)) {
                CompletableFuture<Boolean> news = CompletableFuture.supplyAsync(() -> {
                    try {
                        return lead.news();
                    } catch (InterruptedException error) {
                        throw new IllegalStateException(error);
                    }
                });
                statement.execute("INSERT INTO " + table + " (event) VALUES (1)");
                assertTrue(news.get(5, TimeUnit.SECONDS));
            } finally {
                statement.execute("DROP TABLE " + table);
            }
        }
    }

    @Test
    void aSessionThatAnotherClosesIsReplaced() throws Exception {
        String former = leases.session().orElseThrow();
        try (Lead lead = leases.lead(name)) {
            sql(admin, "SELECT eskit_lease.session_close(?::uuid)", former);
            lead.cancelled.get(5, TimeUnit.SECONDS);
        }
        try (Lead lead = leases.lead(name)) {
            assertNotEquals(former, lead.session());
        }
    }

    @Test
    void aLostConnectionIsNoLostSession() throws Exception {
        try (Lead lead = leases.lead(name)) {
            String session = leases.session().orElseThrow();
            sql(
                    admin,
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                            + " WHERE query LIKE '%session_wait%' AND pid <> pg_backend_pid()");
            Thread.sleep(2_500);
            assertTrue(lead.isTrusted());
            assertEquals(session, leases.session().orElseThrow());
        }
    }

    @Test
    void openingTellsTheErrorOfTheLastTry() throws Exception {
        Leases.Builder builder =
                Leases.builder(() -> DriverManager.getConnection("jdbc:postgresql://127.0.0.1:1/none"));
        SQLException error = assertThrows(SQLException.class, builder.patience(Duration.ofMillis(300))::build);
        assertTrue(error.getSQLState().startsWith("08"), error.toString());
    }

    // ---- what clients/PROTOCOL.md says of refusals, restarts and ends ----

    @Test
    void aRefusalTellsNothingAboutTrust() throws Exception {
        try (Leases other = Leases.builder(URL).build();
                Lead theirs = other.lead(name);
                Lead ours = leases.lead(name + "-2")) {
            for (int i = 0; i < 10; i++) {
                assertTrue(leases.tryLead(name).isEmpty());
                assertTrue(ours.isTrusted());
            }
            assertTrue(theirs.isTrusted());
        }
    }

    @Test
    void aRefusalWithoutAPlaceIsAskedAgain() throws Exception {
        try (Leases other = Leases.builder(URL).build()) {
            admin.setAutoCommit(false);
            sql(
                    admin,
                    "SELECT eskit_lease.lease_acquire(?, ?::uuid)",
                    name,
                    other.session().orElseThrow()); // until the rollback every other session is told `busy`
            CompletableFuture<Lead> waiting = CompletableFuture.supplyAsync(() -> {
                try {
                    return leases.lead(name);
                } catch (SQLException | InterruptedException error) {
                    throw new IllegalStateException(error);
                }
            });
            Thread.sleep(300);
            admin.rollback();
            admin.setAutoCommit(true);
            waiting.get(3, TimeUnit.SECONDS).close();
        }
    }

    @Test
    void aLeaseThatIsLostLeavesNoPlaceInLine() throws Exception {
        try (Leases other = Leases.builder(URL).build();
                Lead lead = leases.lead(name)) {
            CompletableFuture<Lead> next = CompletableFuture.supplyAsync(() -> {
                try {
                    return other.lead(name);
                } catch (SQLException | InterruptedException error) {
                    throw new IllegalStateException(error);
                }
            });
            String places = "SELECT count(*) FROM eskit_lease.waiters WHERE resource = ?";
            while (count(places, name) == 0) Thread.sleep(10);
            force(lead);
            lead.cancelled.get(5, TimeUnit.SECONDS);
            assertEquals(0, count(places, name)); // before it is closed
            next.get(5, TimeUnit.SECONDS).close();
        }
    }

    @Test
    void aPartitionWithoutATaskIsGivenUpAtOnce() throws Exception {
        sql(admin, "SELECT eskit_lease.group_create(?, 2)", name);
        AtomicInteger runs = new AtomicInteger();
        Set<Integer> theirs = ConcurrentHashMap.newKeySet();
        try (Running returns = leases.join(name, partition -> runs.incrementAndGet())) {
            Thread.sleep(4_000); // rests of 0.1 s to 1.6 s by now: work that returns is not run again at once
            assertTrue(runs.get() > 4 && runs.get() <= 14, "it ran " + runs + " times");
            long began = System.nanoTime();
            try (Leases other = Leases.builder(URL).build();
                    Running works = other.join(name, partition -> {
                        theirs.add(partition.partition());
                        partition.news();
                    })) {
                while (theirs.isEmpty()) Thread.sleep(10);
            }
            assertTrue(System.nanoTime() - began < 1_500_000_000L);
        }
        sql(admin, "SELECT eskit_lease.group_drop(?)", name);
    }

    @Test
    void onlyAnUnansweredCommitIsUnsure() throws Exception {
        try (Lead lead = leases.lead(name)) {
            SQLException rolledBack = assertThrows(
                    SQLException.class,
                    () -> lead.transaction(source, tx -> {
                        assertThrows(SQLException.class, () -> sql(tx, "SELECT 1 / 0")); // fails the transaction
                        return null;
                    }));
            assertEquals("25P02", rolledBack.getSQLState());
            SQLException broken = assertThrows(
                    SQLException.class,
                    () -> lead.transaction(source, tx -> {
                        tx.abort(Runnable::run);
                        return null;
                    }));
            assertFalse(broken instanceof LeaseException, broken.toString());
            assertTrue(lead.isTrusted());
        }
    }

    @Test
    void aWrongTableToWatchIsAnErrorOfTheOpening() throws Exception {
        Leases.Builder wrong = Leases.builder(URL).watch("no_such_table");
        assertEquals("42P01", assertThrows(SQLException.class, wrong::build).getSQLState());
        String table = "java_dropped_" + name.replace('-', '_');
        sql(admin, "SELECT 1");
        try (var statement = admin.createStatement()) {
            statement.execute("CREATE TABLE " + table + " (position bigint DEFAULT eskit_lease.position_next())");
            try (Leases watching = Leases.builder(URL)
                            .name(name + "-watches")
                            .ttl(Duration.ofSeconds(1))
                            .watch(table)
                            .build();
                    Lead lead = watching.lead(name)) {
                statement.execute("DROP TABLE " + table);
                for (int i = 0; i < 3; i++) { // each new connection begins the watch again
                    statement.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                            + " WHERE query LIKE '%session_wait%' AND pid <> pg_backend_pid()");
                    Thread.sleep(700);
                    assertTrue(lead.isTrusted());
                }
            }
        }
    }

    @Test
    void aConnectionThatIsBeingMadeIsClosed() throws Exception {
        CountDownLatch goes = new CountDownLatch(1);
        CompletableFuture<Connection> made = new CompletableFuture<>();
        Leases.Builder slow = Leases.builder(() -> {
            boolean interrupted = false;
            while (goes.getCount() > 0) { // as a driver that an interrupt does not stop
                try {
                    goes.await();
                } catch (InterruptedException later) {
                    interrupted = true;
                }
            }
            made.complete(source.getConnection());
            if (interrupted) Thread.currentThread().interrupt();
            return made.get();
        });
        assertThrows(SQLException.class, slow.ttl(Duration.ofSeconds(1)).patience(Duration.ofMillis(100))::build);
        goes.countDown();
        Connection late = made.get(5, TimeUnit.SECONDS);
        for (int i = 0; i < 100 && !late.isClosed(); i++) Thread.sleep(20);
        assertTrue(late.isClosed());
    }

    @Test
    void anotherErrorOfTheSecondConnectionEndsNoSession() throws Exception {
        String session = leases.session().orElseThrow();
        sql(admin, "SELECT eskit_lease.group_create(?, 1)", name);
        sql(admin, "SELECT eskit_lease.session_drain(?::uuid)", session);
        try (Running running = leases.join(name, partition -> {})) { // 55000: the session drains
            Thread.sleep(1_000);
            assertEquals(session, leases.session().orElseThrow());
            assertFalse(running.ended().toCompletableFuture().isDone());
        }
        sql(admin, "SELECT eskit_lease.group_drop(?)", name);
    }
}
