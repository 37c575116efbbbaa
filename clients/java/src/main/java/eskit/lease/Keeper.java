package eskit.lease;

import eskit.lease.Core.Answer;
import eskit.lease.LeaseException.Lost;
import java.lang.System.Logger.Level;
import java.sql.SQLException;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.BooleanSupplier;
import java.util.function.DoubleConsumer;

/** Does what the core decides: the loop of the keeper's connection, and the calls on the second one. */
final class Keeper implements Core.Actions {
    private static final System.Logger LOG = System.getLogger("eskit.lease");
    private static final long IDLE_SECONDS = 10; // after which the second connection is closed
    private static final String COLUMNS = "SELECT alive, trust_ms, revision, reason, NULL::text FROM eskit_lease.";
    /** Errors after which a call on the second connection may succeed when it is repeated. */
    private static final Set<String> PASSING = Set.of("55P03", "57014");

    final Settings settings;
    final double ttl; // ms
    final ExecutorService pool = Executors.newCachedThreadPool(work -> Line.daemon("eskit-lease", work));
    final Turns turns = new Turns();
    private final ReentrantLock lock = new ReentrantLock(); // is never held over a call on the network
    private final Condition changed = lock.newCondition();
    private final Core core;
    private final Set<Handed> scopes = ConcurrentHashMap.newKeySet();
    private final AtomicBoolean rechecks = new AtomicBoolean(); // one is to begin
    private Line line; // the one whose events count
    private CompletableFuture<Void> told = CompletableFuture.completedFuture(null);
    private String warned; // the last warning, until a call is answered: one line for many tries
    private volatile long asks;
    private volatile double trustedUntil = Core.NEVER;
    private volatile String session;
    private volatile State state = State.STARTING;
    private volatile Throwable lastError;
    private volatile boolean stopping;
    private volatile double closeBy = Core.ALWAYS;

    private final ReentrantLock second = new ReentrantLock(true); // one call at a time
    private Line secondLine;
    private long secondCalls;

    Keeper(Settings settings) {
        this.settings = settings;
        ttl = settings.ttl().toMillis();
        core = new Core(
                ttl,
                settings.takeover(),
                settings.watch() != null,
                () -> ThreadLocalRandom.current().nextDouble(),
                this);
        event(now -> core.start());
        Line.daemon("eskit-lease timer", this::keepTime).start();
    }

    /** What the keeper hands out: a scope. */
    abstract static class Handed {
        abstract String session();

        /** Never waits. */
        abstract void cancel();

        /** Asks whether it is still held, at an ask of the keeper. */
        void recheck() {}
    }

    static double now() {
        return System.nanoTime() / 1e6;
    }

    // ---- events ----

    private void event(DoubleConsumer event) {
        lock.lock();
        try {
            event.accept(now());
            session = core.session();
            trustedUntil = core.trustedUntil();
            State next = core.state(now());
            if (next != state) become(next);
            changed.signalAll();
        } finally {
            lock.unlock();
        }
    }

    private void become(State next) {
        State before = state;
        state = next;
        boolean bad = next == State.DOUBTING || next == State.LOST;
        tell(bad ? Level.WARNING : Level.INFO, "keeper " + settings.name() + ": " + before + " -> " + next);
        tell(() -> settings.onState().accept(next));
    }

    private void tell(Level level, String line) {
        tell(() -> LOG.log(level, line));
    }

    /** Logging and hooks run in order, on a thread of their own: they may be slow. */
    private void tell(Runnable action) {
        lock.lock();
        try {
            told = told.thenRunAsync(action, pool).exceptionally(error -> null);
        } finally {
            lock.unlock();
        }
    }

    /** Ticks in time, whatever the connections do. */
    private void keepTime() {
        lock.lock();
        try {
            while (state != State.CLOSED) {
                double left = core.deadline() - now();
                if (left <= 0) event(core::tick);
                else changed.awaitNanos((long) (Math.min(left, 60_000) * 1e6));
            }
        } catch (InterruptedException impossible) {
            throw new IllegalStateException(impossible);
        } finally {
            lock.unlock();
        }
    }

    // ---- actions of the core ----

    @Override
    public void connect() {
        line = new Line("eskit-lease keeper", settings.connector());
        Line mine = line;
        line.call(connection -> true)
                .orTimeout((long) ttl / 2, TimeUnit.MILLISECONDS)
                .whenCompleteAsync(
                        (made, error) -> {
                            if (error == null)
                                event(now -> {
                                    if (line == mine) core.connected(now);
                                });
                            else lose(mine, error);
                        },
                        pool);
    }

    @Override
    public void disconnect() {
        line.drop();
        line = null;
    }

    @Override
    public void open(boolean takeover) {
        call(
                "SELECT true, trust_ms, revision, '', session::text"
                        + " FROM eskit_lease.session_open(?::text, ?::interval, takeover => ?::boolean)",
                settings.name(),
                (long) ttl + " ms",
                takeover);
    }

    @Override
    public void await(long timeoutMs, long revision) {
        call(COLUMNS + "session_wait(?::uuid, ?::bigint, ?::interval)", core.session(), revision, timeoutMs + " ms");
    }

    @Override
    public void beat() {
        if (settings.watch() == null) call(COLUMNS + "session_heartbeat(?::uuid)", core.session());
        else call(COLUMNS + "session_watch(?::uuid, ?::regclass)", core.session(), settings.watch());
    }

    @Override
    public void cancel() {
        scopes.forEach(Handed::cancel);
    }

    @Override
    public void ask() {
        asks++;
        if (rechecks.compareAndSet(false, true)) pool.execute(this::recheck);
    }

    @Override
    public void warn(String why) {
        if (why.equals(warned)) return;
        warned = why;
        boolean taken = why.equals("taken");
        tell(
                Level.WARNING,
                "keeper " + settings.name() + ": " + (taken ? "another process ended the session" : "" + lastError));
    }

    private void call(String sql, Object... values) {
        Line mine = line;
        Line.Row<Answer> answer = row ->
                new Answer(row.getBoolean(1), row.getDouble(2), row.getLong(3), row.getString(4), row.getString(5));
        mine.call(connection -> Line.row(connection, answer, sql, values))
                .whenCompleteAsync(
                        (answered, error) -> {
                            if (error != null && Line.isBroken(error)) lose(mine, error);
                            else
                                event(now -> {
                                    if (line != mine) return;
                                    if (error == null) {
                                        warned = null;
                                        core.answered(now, answered);
                                    } else {
                                        lastError = error;
                                        core.failed(now, ((SQLException) error).getSQLState());
                                    }
                                });
                        },
                        pool);
    }

    private void lose(Line lost, Throwable error) {
        event(now -> {
            lost.drop();
            if (line != lost) return;
            lastError = error;
            warn("a lost connection");
            line = null;
            core.disconnected(now);
        });
    }

    // ---- the second connection ----

    /** Calls once on the second connection. LF003 is Lost, and ends the session for the core. */
    <T> T once(String session, Line.Call<T> call) throws SQLException {
        second.lock();
        try {
            if (now() >= closeBy) throw new SQLException("the keeper is closed", "08003");
            if (secondLine == null) secondLine = new Line("eskit-lease calls", settings.connector());
            long limit = (long) Math.max(1, Math.min(ttl / 2, closeBy - now()));
            return secondLine.call(call).orTimeout(limit, TimeUnit.MILLISECONDS).join();
        } catch (CompletionException failed) {
            Throwable cause = failed.getCause();
            if (Line.isBroken(cause)) {
                secondLine.drop();
                secondLine = null;
            }
            if (!(cause instanceof SQLException error)) throw new SQLException("no answer: " + cause, "08006", cause);
            if (!"LF003".equals(error.getSQLState())) throw error;
            heard(session, now(), false, 0);
            throw new Lost(error.getMessage(), error);
        } finally {
            long mine = ++secondCalls;
            CompletableFuture.delayedExecutor(IDLE_SECONDS, TimeUnit.SECONDS, pool)
                    .execute(() -> closeSecond(mine));
            second.unlock();
        }
    }

    private void closeSecond(long calls) {
        second.lock();
        try {
            if (secondCalls != calls || secondLine == null) return;
            secondLine.close();
            secondLine = null;
        } finally {
            second.unlock();
        }
    }

    /** Repeats a call that breaks, until the session is known to have ended, or half of the TTL after a close began. */
    <T> T repeat(String session, Line.Call<T> call) throws SQLException {
        for (double pause = 100; ; pause = Math.min(2 * pause, 1_000)) {
            if (!session.equals(this.session)) throw new Lost("the session has ended", null);
            try {
                return once(session, call);
            } catch (SQLException error) {
                if (!passes(error) || now() + pause > closeBy - ttl / 2) throw error;
            }
            double until = now() + pause;
            boolean interrupted = Thread.interrupted();
            try {
                await(() -> false, until);
            } catch (InterruptedException late) {
                interrupted = true;
            }
            if (interrupted) Thread.currentThread().interrupt();
        }
    }

    static boolean passes(SQLException error) {
        return Line.isBroken(error) || PASSING.contains(error.getSQLState());
    }

    /** Tells the core what an answer on another connection says about the session. */
    void heard(String of, double sent, boolean alive, double trustMs) {
        event(now -> {
            if (of.equals(core.session())) core.heard(now, sent, alive, trustMs);
        });
    }

    // ---- what the verbs wait for ----

    long asks() {
        return asks;
    }

    String session() {
        return session;
    }

    State state() {
        return now() < trustedUntil || state != State.TRUSTED && state != State.DRAINING ? state : State.DOUBTING;
    }

    /** Returns whether work under this session may begin: read at once, as a stopped process could not tick. */
    boolean trusts(String session) {
        return session.equals(this.session) && now() < trustedUntil;
    }

    boolean isStopping() {
        return stopping;
    }

    /** Waits until `done` holds, and returns whether it does by then. */
    boolean await(BooleanSupplier done, double until) throws InterruptedException {
        lock.lockInterruptibly();
        try {
            while (!done.getAsBoolean()) {
                double left = until - now();
                if (left <= 0) return false;
                changed.awaitNanos((long) (Math.min(left, 60_000) * 1e6));
            }
            return true;
        } finally {
            lock.unlock();
        }
    }

    /** Lets all that wait look again. */
    void nudge() {
        event(now -> {});
    }

    /** Waits for a session that is trusted; null if there is none by then. */
    String trusted(double until) throws InterruptedException {
        await(() -> stopping || state() == State.TRUSTED, until);
        if (stopping) throw new IllegalStateException("the keeper drains or is closed");
        return state() == State.TRUSTED ? session : null;
    }

    void open() throws SQLException, InterruptedException {
        boolean opened = false;
        try {
            opened = await(
                    () -> state() == State.TRUSTED, now() + settings.patience().toMillis());
        } finally {
            if (!opened) close();
        }
        if (opened) return;
        if (lastError instanceof SQLException error) throw error;
        throw new SQLException("no session within " + settings.patience(), "08001", lastError);
    }

    /** Hands a scope out; false if its session, or the trust in it, has ended meanwhile. */
    boolean begin(Handed scope) {
        lock.lock();
        try {
            return !stopping && trusts(scope.session()) && scopes.add(scope);
        } finally {
            lock.unlock();
        }
    }

    void end(Handed scope) {
        scopes.remove(scope);
        nudge();
    }

    private void recheck() {
        rechecks.set(false);
        scopes.forEach(Handed::recheck);
    }

    void failed(String what, Throwable error) {
        tell(Level.WARNING, what + " failed: " + error);
    }

    // ---- the end ----

    void drain(java.time.Duration time) {
        double began = now(), until = began + time.toMillis();
        boolean first;
        lock.lock();
        try {
            first = !stopping;
            stopping = true;
            asks++; // wakes all that wait
        } finally {
            lock.unlock();
        }
        String draining = session;
        event(now -> core.drain());
        if (first && draining != null && !time.isZero()) {
            pool.execute(() -> {
                try {
                    repeat(draining, c -> Line.run(c, "SELECT eskit_lease.session_drain(?::uuid)", draining));
                } catch (SQLException ended) { // nothing is left to drain
                }
            });
        }
        quietly(() -> await(scopes::isEmpty, until));
        finish();
    }

    void close() {
        drain(java.time.Duration.ZERO);
    }

    /** Cancels what is left, and closes the session, within one TTL. */
    private synchronized void finish() {
        if (state == State.CLOSED && closeBy < Core.ALWAYS) return;
        double began = now();
        closeBy = began + 0.95 * ttl;
        cancel();
        quietly(() -> await(scopes::isEmpty, began + ttl / 2));
        String closing = session;
        try {
            while (closing != null && closing.equals(session)) {
                try {
                    once(closing, c -> Line.run(c, "SELECT eskit_lease.session_close(?::uuid)", closing));
                    break;
                } catch (SQLException error) {
                    if (!passes(error) || now() + 100 > closeBy) break; // the session ends with its TTL
                    quietly(() -> await(() -> false, now() + 100));
                }
            }
        } finally {
            closeBy = now();
            event(now -> {
                core.close();
                if (line != null) disconnect(); // it was being made
            });
            closeSecond(secondCalls);
        }
    }

    private interface Wait {
        void run() throws InterruptedException;
    }

    /** Waits to the end, and keeps an interrupt for the caller. */
    private static void quietly(Wait wait) {
        try {
            wait.run();
        } catch (InterruptedException hurry) { // ends the wait: what follows is bounded
            Thread.currentThread().interrupt();
        }
    }
}
