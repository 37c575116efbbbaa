package eskit.lease;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.logging.Handler;
import java.util.logging.LogRecord;
import java.util.logging.Logger;
import javax.sql.DataSource;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;
import org.postgresql.ds.PGSimpleDataSource;

/** What the server refuses, and answers that are lost: nothing stays taken, and nothing runs twice. */
@EnabledIfEnvironmentVariable(named = "DATABASE_URL", matches = ".+")
@Timeout(60)
class FaultTest {
    private static final String BEGIN = "execution_begin", FINISH = "execution_finish", CLAIM = "item_claim";
    private static final String SILENT = "silent"; // no answer comes

    private final String name = "java-fault-" + UUID.randomUUID();
    private final List<Fault> faults = new CopyOnWriteArrayList<>();
    private final List<LogRecord> records = new CopyOnWriteArrayList<>();
    private final Logger logger = Logger.getLogger("eskit.lease");
    private final Handler recorder = new Handler() {
        @Override
        public void publish(LogRecord line) {
            line.getSourceMethodName(); // is found by the stack of the call
            records.add(line);
        }

        @Override
        public void flush() {}

        @Override
        public void close() {}
    };
    private volatile Thread caller; // is interrupted by a fault
    private Leases leases;
    private PGSimpleDataSource source;
    private Connection admin;

    /** Raises an error for the first calls of a function: of class 08 after the call, whose answer is lost. */
    private record Fault(String in, String sqlstate, AtomicInteger left) {
        boolean strikes(String sql) {
            return sql.contains(in) && left.getAndUpdate(n -> Math.max(n - 1, 0)) > 0;
        }
    }

    private void fault(String in, String sqlstate, int times) {
        faults.add(new Fault(in, sqlstate, new AtomicInteger(times)));
    }

    @BeforeEach
    void open() throws Exception {
        logger.addHandler(recorder);
        Properties user = new Properties();
        source = new PGSimpleDataSource();
        source.setUrl(Leases.jdbcUrl(System.getenv("DATABASE_URL"), user));
        source.setUser(user.getProperty("user"));
        source.setPassword(user.getProperty("password"));
        admin = source.getConnection();
        source.setApplicationName(name);
        leases = Leases.builder(this::connect)
                .name(name)
                .ttl(Duration.ofSeconds(4))
                .build();
    }

    @AfterEach
    void close() throws Exception {
        leases.close();
        logger.removeHandler(recorder);
        admin.close();
    }

    private static <T> T proxy(Class<T> type, InvocationHandler handler) {
        return type.cast(Proxy.newProxyInstance(FaultTest.class.getClassLoader(), new Class<?>[] {type}, handler));
    }

    private static Object invoke(Object on, Method method, Object[] values) throws Throwable {
        try {
            return method.invoke(on, values);
        } catch (InvocationTargetException error) {
            throw error.getCause();
        }
    }

    private Connection connect() throws SQLException {
        if (faults.stream().anyMatch(fault -> fault.strikes("connect")))
            throw new SQLException("told to fail", "53300");
        Connection real = source.getConnection();
        return proxy(Connection.class, (self, method, values) -> {
            Object made = invoke(real, method, values);
            if (!(made instanceof PreparedStatement statement)) return made;
            return proxy(PreparedStatement.class, (of, step, arguments) -> {
                if (!step.getName().equals("executeQuery")) return invoke(statement, step, arguments);
                for (Fault fault : faults) {
                    if (!fault.strikes((String) values[0])) continue;
                    if (caller != null) caller.interrupt();
                    if (fault.sqlstate.startsWith("08")) statement.executeQuery();
                    if (fault.sqlstate.equals(SILENT))
                        real.prepareStatement("SELECT pg_sleep(60)").executeQuery();
                    throw new SQLException("told to fail", fault.sqlstate);
                }
                return invoke(statement, step, arguments);
            });
        });
    }

    private void sql(String sql, Object... values) throws SQLException {
        Line.rows(admin, row -> null, sql, values);
    }

    private String text(String sql, Object... values) throws SQLException {
        List<String> rows = Line.rows(admin, row -> row.getString(1), sql, values);
        return rows.isEmpty() ? null : rows.get(0);
    }

    private String keyState() throws SQLException {
        return text("SELECT state FROM eskit_lease.executions WHERE key = ?", name);
    }

    private static void until(Callable<Boolean> holds) throws Exception {
        for (int i = 0; !holds.call(); i++) {
            assertTrue(i < 500, "it did not come");
            Thread.sleep(20);
        }
    }

    private boolean logged(String text) {
        return records.stream().anyMatch(line -> line.getMessage().contains(text));
    }

    private void queue(int attempts) throws SQLException {
        sql("SELECT eskit_lease.queue_create(?, max_attempts => ?, retry_backoff => '10 ms')", name, attempts);
        sql("SELECT eskit_lease.item_add(?, '1'::jsonb)", name);
    }

    /** Calls on a thread that is interrupted before the next fault. Returns what it threw. */
    private Throwable interrupted(Callable<?> call) throws Exception {
        return called(() -> {
                    caller = Thread.currentThread();
                    return call.call();
                })
                .get(10, TimeUnit.SECONDS);
    }

    /** Calls on a thread of its own. Has what it threw. */
    private static CompletableFuture<Throwable> called(Callable<?> call) {
        CompletableFuture<Throwable> end = new CompletableFuture<>();
        new Thread(() -> {
                    try {
                        call.call();
                        end.complete(null);
                    } catch (Throwable error) {
                        end.complete(error);
                    }
                })
                .start();
        return end;
    }

    @Test
    void aFunctionWhoseResultIsRefusedDoesNotRunAgain() throws Exception {
        AtomicInteger runs = new AtomicInteger();
        for (String result : List.of("sent to bob", "\"\\u0000\"", "\"\0\"", "\"\\ud800\"", "NaN")) {
            String key = name + runs;
            int before = runs.get();
            assertThrows(
                    SQLException.class,
                    () -> leases.once(key, attempt -> {
                        runs.incrementAndGet();
                        return result;
                    }),
                    result);
            assertEquals(
                    "failed",
                    leases.once(key, attempt -> {
                                runs.incrementAndGet();
                                return null;
                            })
                            .state(),
                    result);
            assertEquals(before + 1, runs.get(), result);
        }
    }

    @Test
    void aFunctionDoesNotRunAgainUnderItsFenceIfNoEndIsTaken() throws Exception {
        fault(FINISH, "42501", 1);
        fault("execution_fail", "42501", 2);
        assertThrows(SQLException.class, () -> leases.once(name, attempt -> null));
        until(() -> logged("could not be given back"));
        assertEquals("failed", leases.once(name, attempt -> "2").state());
    }

    @Test
    void anErrorWithAnyTextFailsItsItem() throws Exception {
        queue(2);
        AtomicInteger tries = new AtomicInteger();
        try (Running running = leases.work(name, 1, source, (item, tx) -> {
            if (tries.incrementAndGet() == 1) throw new IllegalStateException("bad \0 and \ud800");
            throw new IllegalStateException() {
                private static final long serialVersionUID = 1;

                @Override
                public String getMessage() {
                    throw new IllegalStateException("no text");
                }
            };
        })) {
            until(() -> text("SELECT error FROM eskit_lease.dead_items WHERE queue = ?", name) != null);
        }
        assertEquals(2, tries.get());
        assertTrue(logged("bad \uFFFD and \uFFFD"));
    }

    @Test
    void anErrorWhoseTextIsRefusedFailsItsItem() throws Exception {
        queue(1);
        fault("item_fail", "22P05", 1); // a letter that the server's encoding lacks
        try (Running running = leases.work(name, 1, source, (item, tx) -> {
            throw new IllegalStateException("\u20ac");
        })) {
            until(() -> "the error's text could not be stored"
                    .equals(text("SELECT error FROM eskit_lease.dead_items WHERE queue = ?", name)));
        }
        until(() -> logged("could not be stored"));
    }

    @Test
    void aKeyWhoseCallerGoesIsFreed() throws Exception {
        fault(BEGIN, "08006", 1);
        AtomicInteger runs = new AtomicInteger();
        Throwable end = interrupted(() -> leases.once(name, attempt -> String.valueOf(runs.incrementAndGet())));
        assertTrue(end instanceof InterruptedException, String.valueOf(end));
        until(() -> !"running".equals(keyState()));
        assertEquals(0, runs.get());
        assertTrue(leases.once(name, attempt -> null).first());
    }

    @Test
    void aLeaseWhoseCallerGoesIsReleased() throws Exception {
        fault("lease_acquire", "08006", 1);
        Throwable end = interrupted(() -> leases.lead(name));
        assertTrue(end instanceof InterruptedException, String.valueOf(end));
        until(() -> "0"
                .equals(text("SELECT count(*) FROM eskit_lease.leases WHERE resource = ? AND state = 'held'", name)));
        leases.lead(name).close();
    }

    @Test
    void aMemberLeavesAlsoAfterAJoinWithoutAnAnswer() throws Exception {
        sql("SELECT eskit_lease.group_create(?, 1)", name);
        fault("group_join", "08006", 1);
        fault("group_join", "53200", 1); // so that it is not answered before the close
        Running running = leases.join(name, partition -> partition.news());
        until(() -> faults.get(0).left.get() == 0);
        running.close();
        assertEquals("0", text("SELECT count(*) FROM eskit_lease.group_members WHERE group_name = ?", name));
    }

    @Test
    void anErrorOfTheAssignmentEndsNoMembership() throws Exception {
        sql("SELECT eskit_lease.group_create(?, 1)", name);
        for (String sqlstate : List.of("40001", "53200", "XX000")) fault("group_assignment", sqlstate, 1);
        AtomicInteger runs = new AtomicInteger();
        try (Running running = leases.join(name, partition -> {
            runs.incrementAndGet();
            partition.news();
        })) {
            until(() -> runs.get() > 0);
        }
        assertTrue(logged("asks again after"));
    }

    @Test
    void aRefusedAssignmentLeavesAndIsRaised() throws Exception {
        sql("SELECT eskit_lease.group_create(?, 1)", name);
        fault("group_assignment", "42501", 1);
        var ended = leases.join(name, partition -> partition.news()).ended().toCompletableFuture();
        assertThrows(Exception.class, () -> ended.get(10, TimeUnit.SECONDS));
        assertEquals("0", text("SELECT count(*) FROM eskit_lease.group_members WHERE group_name = ?", name));
        until(() -> logged("has ended"));
    }

    @Test
    void briefErrorsOfAClaimPass() throws Exception {
        queue(1);
        for (String sqlstate : List.of("55P03", "57014", "40001", "40P01", "53200")) fault(CLAIM, sqlstate, 1);
        AtomicInteger runs = new AtomicInteger();
        try (Running running = leases.work(name, 1, source, (item, tx) -> runs.incrementAndGet())) {
            until(() -> runs.get() > 0);
        }
    }

    @Test
    void aClaimWithoutAnAnswerEndsTheSessionIfItCannotBeSeen() throws Exception {
        queue(3);
        String former = leases.session().orElseThrow();
        fault(CLAIM, "08006", 1);
        fault("eskit_lease.items ", "42501", 1);
        AtomicInteger runs = new AtomicInteger();
        long began = System.nanoTime();
        try (Running running = leases.work(name, 1, source, (item, tx) -> runs.incrementAndGet())) {
            until(() -> runs.get() > 0);
        }
        assertTrue(System.nanoTime() - began < 3_000_000_000L, "before the TTL");
        assertNotEquals(former, leases.session().orElseThrow());
        assertTrue(logged("grant_monitor"));
        assertFalse(logged("another process"));
    }

    @Test
    void aClaimWithoutAConnectionCostsNoSession() throws Exception {
        queue(1);
        String session = leases.session().orElseThrow();
        fault("connect", "53300", 2);
        fault("eskit_lease.items ", "42501", 100);
        AtomicInteger runs = new AtomicInteger();
        try (Running running = leases.work(name, 1, source, (item, tx) -> runs.incrementAndGet())) {
            until(() -> runs.get() > 0);
        }
        assertEquals(0, faults.get(0).left.get());
        assertEquals(session, leases.session().orElseThrow());
    }

    @Test
    void aClaimWithoutAnAnswerIsGivenBackAtTheEnd() throws Exception {
        queue(1);
        fault(CLAIM, "08006", 1);
        Running running = leases.work(name, 1, source, (item, tx) -> {});
        until(() -> "claimed".equals(text("SELECT state FROM eskit_lease.items WHERE queue = ?", name)));
        running.close();
        assertNotEquals("claimed", text("SELECT state FROM eskit_lease.items WHERE queue = ?", name));
    }

    @Test
    void aHandlerWithoutAConnectionTakesNoAttempt() throws Exception {
        queue(1);
        AtomicInteger calls = new AtomicInteger(), runs = new AtomicInteger(), attempt = new AtomicInteger();
        DataSource exhausted = proxy(DataSource.class, (self, method, values) -> {
            if (calls.incrementAndGet() < 3) throw new SQLException("request timed out", "08001");
            return source.getConnection();
        });
        long began = System.nanoTime();
        try (Running running = leases.work(name, 1, exhausted, (item, tx) -> {
            attempt.set(item.attempt());
            runs.incrementAndGet();
        })) {
            until(() -> runs.get() > 0);
        }
        assertEquals(1, attempt.get());
        assertTrue(System.nanoTime() - began > 1_900_000_000L, "after a pause");
        assertTrue(logged("could not begin"));
    }

    @Test
    void anErrorOfConnectingIsTriedAgain() throws Exception {
        fault("connect", "", 2);
        String session = leases.session().orElseThrow();
        until(() -> text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                        + " WHERE query LIKE '%session_wait%' AND pid <> pg_backend_pid()")
                != null);
        Thread.sleep(5_000);
        assertEquals(0, faults.get(0).left.get());
        assertEquals(State.TRUSTED, leases.state());
        assertEquals(session, leases.session().orElseThrow());
    }

    @Test
    void anErrorThatDoesNotPassIsThrown() throws Exception {
        for (String sqlstate : List.of("XX000", "P0001", "54000", "28000")) {
            fault("lease_acquire", sqlstate, 1_000);
            fault(BEGIN, sqlstate, 1_000);
            List<Callable<?>> verbs = List.of(
                    () -> leases.lead(name), () -> leases.tryLead(name), () -> leases.once(name, attempt -> null));
            for (Callable<?> verb : verbs) {
                Throwable end = called(verb).get(3, TimeUnit.SECONDS);
                assertEquals(sqlstate, end instanceof SQLException error ? error.getSQLState() : String.valueOf(end));
            }
            faults.clear();
        }
    }

    @Test
    void anErrorThatDoesNotPassForLongIsTold() throws Exception {
        fault("lease_acquire", "25006", 1_000);
        CompletableFuture<Throwable> end = called(() -> leases.lead(name));
        until(() -> logged("told to fail"));
        faults.clear();
        assertNull(end.get(5, TimeUnit.SECONDS));
    }

    @Test
    void aReleaseThatIsRefusedLeavesNoLease() throws Exception {
        Set<Long> fences = ConcurrentHashMap.newKeySet();
        for (int refusals : List.of(1, 2, 1, 2)) { // of the release, and of the one that needs no fence
            Lead lead =
                    fences.size() < 2 ? leases.lead(name) : leases.tryLead(name).orElseThrow();
            assertTrue(fences.add(lead.fence()), "after " + fences.size());
            fault("lease_release", "XX000", refusals);
            lead.close();
            assertEquals(0, faults.get(faults.size() - 1).left.get());
        }
    }

    @Test
    void aLeaseUnderAnotherFenceIsReleasedWithTheScope() throws Exception {
        Lead lead = leases.lead(name);
        lead.unsure(); // so that it does not ask
        sql("SELECT eskit_lease.lease_force_release(?, ?, 'a test')", name, lead.fence());
        sql("SELECT eskit_lease.lease_acquire(?, ?::uuid)", name, lead.session());
        lead.close();
        assertEquals("0", text("SELECT count(*) FROM eskit_lease.leases WHERE resource = ? AND state = 'held'", name));
    }

    @Test
    void aTryThrowsAtOnceWhatALeadWaitsFor() throws Exception {
        fault("lease_acquire", "55000", 1);
        SQLException refused = assertThrows(SQLException.class, () -> leases.tryLead(name));
        assertEquals("55000", refused.getSQLState());
        fault("lease_acquire", "55000", 1);
        leases.lead(name).close();
    }

    @Test
    void aPartitionNeverBeginsAgainUnderItsFence() throws Exception {
        sql("SELECT eskit_lease.group_create(?, 1)", name);
        fault("group_release", "XX000", 1);
        List<Long> fences = new CopyOnWriteArrayList<>();
        Partition.Task work = partition -> {
            fences.add(partition.fence());
            if (fences.size() == 1) throw new LeaseException.Refused(new SQLException("refused", "LF001"));
            if (fences.size() == 2) Thread.currentThread().interrupt(); // as work may leave it
            if (fences.size() > 3) partition.news();
        };
        try (Running running = leases.join(name, work)) {
            until(() -> fences.size() > 3);
            fault("set_config", "XX000", 2); // the release and the leave
        }
        try (Running running = leases.join(name, work)) {
            until(() -> fences.size() > 4);
        }
        assertEquals(fences.size(), Set.copyOf(fences).size(), String.valueOf(fences));
    }

    @Test
    void anItemWhoseHandlerLeavesAnInterruptFails() throws Exception {
        queue(1);
        fault("item_fail", "40001", 1);
        try (Running running = leases.work(name, 1, source, (item, tx) -> {
            Thread.currentThread().interrupt();
            throw new IllegalStateException("stopped");
        })) {
            until(() -> text("SELECT error FROM eskit_lease.dead_items WHERE queue = ?", name) != null);
        }
    }

    @Test
    void nothingIsLeftByAnInterruptAtAnyTime() throws Exception {
        String count = "SELECT count(*) FROM eskit_lease.";
        for (int step = 0; step < 60; step++) {
            String key = name + step;
            Thread working = new Thread(() -> {
                try {
                    leases.lead(name).close();
                    leases.tryLead(name).ifPresent(Lead::close);
                    leases.once(key, attempt -> {
                        Thread.sleep(1);
                        return null;
                    });
                } catch (Exception told) { // of the interrupt
                }
            });
            working.start();
            TimeUnit.MICROSECONDS.sleep(250 * step);
            working.interrupt();
            working.join(10_000);
            assertFalse(working.isAlive());
        }
        leases.lead(name).close();
        until(() -> "0".equals(text(count + "leases WHERE resource = ? AND state = 'held'", name)));
        until(() -> "0".equals(text(count + "waiters WHERE resource = ?", name)));
        until(() -> "0".equals(text(count + "executions WHERE starts_with(key, ?) AND state = 'running'", name)));
        CompletableFuture<Throwable> waiting = called(() -> leases.lead(name).news());
        leases.close();
        waiting.get(10, TimeUnit.SECONDS);
        until(() -> "0".equals(text("SELECT count(*) FROM pg_stat_activity WHERE application_name = ?", name)));
    }

    @Test
    void closesWithinTheTtlWhateverWaits() throws Exception {
        fault("lease_acquire", SILENT, 1_000);
        for (int i = 0; i < 6; i++) {
            String each = name + i;
            called(() -> leases.lead(each));
        }
        Thread.sleep(500);
        long began = System.nanoTime();
        leases.close();
        assertTrue(System.nanoTime() - began < 4_200_000_000L, (System.nanoTime() - began) / 1_000_000 + " ms");
    }

    @Test
    void anIdleConnectionThatIsClosedIsReplaced() throws Exception {
        leases.lead(name).close();
        sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%lease_release%' AND pid <>"
                + " pg_backend_pid()");
        Thread.sleep(300);
        leases.tryLead(name).orElseThrow().close(); // it asks once
    }

    @Test
    void eachLineHasOneSource() throws Exception {
        queue(1);
        try (Running running = leases.work(name, 1, source, (item, tx) -> {
            throw new IllegalStateException();
        })) {
            until(() -> logged("failed"));
        }
        for (LogRecord line : records) assertEquals("log", line.getSourceMethodName());
    }
}
