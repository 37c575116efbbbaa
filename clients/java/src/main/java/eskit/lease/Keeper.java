package eskit.lease;

import static eskit.lease.Line.now;

import eskit.lease.Core.Answer;
import eskit.lease.LeaseException.Lost;
import java.lang.System.Logger.Level;
import java.sql.SQLException;
import java.time.Duration;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
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

/** Does what the core decides: the loop of the keeper's connection. Gives the verbs what they wait for and call. */
final class Keeper implements Core.Actions {
    private static final System.Logger LOG = System.getLogger("eskit.lease");
    /** Errors after which a call on the second connection may succeed when it is repeated. */
    private static final Set<String> PASSING = Set.of("55P03", "57014", "40001", "40P01");

    final double ttl; // ms
    final ExecutorService pool = Executors.newCachedThreadPool(work -> Line.daemon("eskit-lease", work));
    final Turns turns = new Turns();
    final Set<String> used = ConcurrentHashMap.newKeySet(); // keys with fences whose end the server has refused
    private final Settings settings;
    private final SessionSql sql;
    private final Calls calls;
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

    Keeper(Settings settings) {
        this.settings = settings;
        ttl = settings.ttl().toMillis();
        sql = new SessionSql(settings, why -> log(Level.WARNING, why));
        calls = new Calls(settings.connector(), ttl / 2, pool);
        boolean watches = settings.watch() != null;
        core = new Core(
                ttl,
                settings.takeover(),
                watches,
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

    // ---- events ----

    private void event(DoubleConsumer event) {
        lock.lock();
        try {
            event.accept(now());
            session = core.session();
            trustedUntil = core.trustedUntil();
            State before = state, next = core.state(now());
            if (next != before) {
                state = next;
                boolean bad = next == State.DOUBTING || next == State.LOST;
                log(bad ? Level.WARNING : Level.INFO, before + " -> " + next);
                tell(() -> settings.onState().accept(next));
            }
            changed.signalAll();
        } finally {
            lock.unlock();
        }
    }

    void log(Level level, String line) {
        tell(() -> log(level, settings.name(), line));
    }

    /** Has a name, as java.util.logging tells the method that logs. */
    private static void log(Level level, String name, String line) {
        LOG.log(level, "keeper " + name + ": " + line);
    }

    /** Logging and hooks run in order, on threads of their own: they may be slow. */
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
        Line mine = new Line("eskit-lease keeper", settings.connector());
        line = mine;
        mine.call(connection -> true)
                .orTimeout((long) ttl / 2, TimeUnit.MILLISECONDS)
                .whenCompleteAsync((made, error) -> happen(mine, error, core::connected), pool);
    }

    @Override
    public void disconnect() {
        line.drop();
        line = null;
    }

    @Override
    public void open(boolean takeover) {
        call(sql.open(takeover));
    }

    @Override
    public void await(long timeoutMs, long revision) {
        call(sql.await(core.session(), timeoutMs, revision));
    }

    @Override
    public void beat() {
        call(sql.beat(core.session()));
    }

    private void call(Line.Call<Answer> call) {
        Line mine = line;
        mine.call(call)
                .whenCompleteAsync((answer, error) -> happen(mine, error, now -> core.answered(now, answer)), pool);
    }

    /** Tells the core what became of a call on its connection, unless it has another one by now. */
    private void happen(Line of, Throwable error, DoubleConsumer success) {
        event(now -> {
            if (error != null && (!of.isUp() || Line.isBroken(error))) of.drop();
            if (line != of) return;
            if (error == null) {
                warned = null;
                success.accept(now);
                return;
            }
            lastError = error;
            if (error instanceof SQLException refused && of.isUp() && !Line.isBroken(error)) {
                core.failed(now, refused.getSQLState());
            } else {
                warn("a lost connection");
                line = null;
                core.disconnected(now);
            }
        });
    }

    @Override
    public void cancel() {
        scopes.forEach(Handed::cancel);
    }

    @Override
    public void ask() {
        asks++;
        if (rechecks.compareAndSet(false, true))
            pool.execute(() -> {
                rechecks.set(false);
                scopes.forEach(Handed::recheck);
            });
    }

    @Override
    public void warn(String why) {
        if (why.equals(warned)) return;
        warned = why;
        log(Level.WARNING, why.equals("taken") ? "another process ended the session" : String.valueOf(lastError));
    }

    // ---- calls on the second connection ----

    /** Calls once. Lost ends the session for the core, too. */
    <T> List<T> rows(String session, Line.Row<T> map, String sql, Object... values) throws SQLException {
        try {
            return calls.rows(map, sql, values);
        } catch (Lost ended) {
            heard(session, now(), false, 0);
            throw ended;
        }
    }

    /** Repeats a call that breaks, until the session is known to have ended, or half of the TTL after a close began. */
    <T> T repeat(String session, Line.Row<T> map, String sql, Object... values) throws SQLException {
        return repeatAll(session, map, sql, values).get(0);
    }

    <T> List<T> repeatAll(String session, Line.Row<T> map, String sql, Object... values) throws SQLException {
        for (double pause = 100; ; pause = Math.min(2 * pause, 1_000)) {
            if (!session.equals(this.session)) throw new Lost("the session has ended", null);
            try {
                return rows(session, map, sql, values);
            } catch (SQLException error) {
                if (!passes(error) || now() + pause > calls.closeBy() - ttl / 2) throw error;
            }
            awaitThrough(() -> false, now() + pause);
        }
    }

    /** What is done behind a caller that may have gone. */
    interface Work {
        void run() throws SQLException;
    }

    /** Finishes what a caller has left, whom no interrupt may keep from it. A close waits for it, as for a scope. */
    void giveBack(String session, Work work, Runnable then) {
        Handed open = new Handed() {
            @Override
            String session() {
                return session;
            }

            @Override
            void cancel() {}
        };
        scopes.add(open);
        pool.execute(() -> {
            try {
                work.run();
            } catch (SQLException error) {
                if (!isSettled(error)) log(Level.WARNING, "something could not be given back: " + error);
            } finally {
                end(open);
                then.run();
            }
        });
    }

    /** Gives something back, which has no end but that of the session. Returns whether nothing is left to give. */
    boolean settle(String session, String sql, Object... values) {
        try {
            return repeat(session, row -> true, limited(sql), values);
        } catch (SQLException error) {
            boolean settled = isSettled(error);
            if (!settled) log(Level.WARNING, "something could not be given back: " + error);
            return settled;
        }
    }

    /**
     * Gives an item or a key back with the text of an error, the third of the values. A text that the server refuses,
     * as its encoding lacks a letter, is replaced: else the item would stay claimed for as long as the session lives.
     */
    boolean fail(String session, String sql, Object... values) {
        values[2] = storable(values[2]);
        try {
            return repeat(session, row -> true, limited(sql), values);
        } catch (SQLException error) {
            if (isSettled(error)) return true;
            log(Level.WARNING, "the text of an error could not be stored: " + error);
            values[2] = "the error's text could not be stored";
            return settle(session, sql, values);
        }
    }

    /** Returns the text of an error without what no server stores: NUL, and half a surrogate pair. */
    static String storable(Object error) {
        String text;
        try {
            text = String.valueOf(error);
        } catch (Throwable unreadable) { // a getMessage() that throws
            text = error.getClass().getName();
        }
        return text.replaceAll("\\x00|\\p{Cs}", "\uFFFD");
    }

    /** Returns whether nothing is left to give back: the session, the grant or the object is gone. */
    private static boolean isSettled(SQLException error) {
        return LeaseException.isOver(error) || Set.of("LF001", "42704").contains(String.valueOf(error.getSQLState()));
    }

    /**
     * Returns a statement, which must have no FROM, with a limit to its wait for fenced transactions: the server does not
     * notice that a call is given up, and would go on waiting beside the next one.
     */
    private String limited(String sql) {
        return sql + " FROM set_config('lock_timeout', '" + (long) ttl / 4 + " ms', true)";
    }

    static boolean passes(SQLException error) {
        String state = error.getSQLState(); // 53: the server lacks something
        return Line.isBroken(error) || PASSING.contains(state) || state.startsWith("53");
    }

    /** Tells the core what an answer on another connection says about the session. */
    void heard(String of, double sent, boolean alive, double trustMs) {
        event(now -> {
            if (of.equals(core.session())) core.heard(now, sent, alive, trustMs);
        });
    }

    /** Closes the session, whose state is not to be found out, and lets another open. */
    void giveUp(String given, String why) {
        event(now -> {
            if (!given.equals(core.session())) return;
            log(Level.WARNING, "closes the session: " + why);
            core.giveUp(now);
        });
        closeSession(given, now() + ttl);
    }

    /** Closes a session; one that cannot be closed by then ends with its TTL. */
    private void closeSession(String closing, double until) {
        while (true) {
            try {
                calls.rows(row -> true, limited("SELECT eskit_lease.session_close(?::uuid)"), closing);
                return;
            } catch (SQLException error) {
                if (!passes(error) || now() + 100 > until) {
                    if (!isSettled(error)) log(Level.WARNING, "the session could not be closed: " + error);
                    return;
                }
            }
            awaitThrough(() -> false, now() + 100);
        }
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

    /** Returns when to ask again after an answer that no ask will follow. */
    double retryAt() {
        return now() + Math.min(1_000, ttl / 6);
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

    /** Waits as `await`, through interrupts, which it keeps for the caller. */
    private void awaitThrough(BooleanSupplier done, double until) {
        boolean interrupted = Thread.interrupted();
        for (boolean waited = false; !waited; ) {
            try {
                await(done, until);
                waited = true;
            } catch (InterruptedException later) {
                interrupted = true;
            }
        }
        if (interrupted) Thread.currentThread().interrupt();
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

    // ---- open, drain and close ----

    void open() throws SQLException, InterruptedException {
        boolean opened = false;
        try {
            String first = trusted(now() + settings.patience().toMillis());
            if (first == null && lastError instanceof SQLException error) throw error;
            if (first == null) throw new SQLException("no session within " + settings.patience(), "08001", lastError);
            // Raises what the heartbeats only warn of.
            if (settings.watch() != null) repeat(first, row -> true, SessionSql.WATCH, first, settings.watch());
            opened = true;
        } finally {
            if (!opened) close();
        }
    }

    void drain(Duration time) {
        double until = now() + time.toMillis();
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
        if (first && draining != null && !time.isZero())
            pool.execute(() -> settle(draining, "SELECT eskit_lease.session_drain(?::uuid)", draining));
        awaitThrough(scopes::isEmpty, until);
        finish();
    }

    void close() {
        drain(Duration.ZERO);
    }

    /** Cancels what is left, and closes the session, within one TTL. */
    private synchronized void finish() {
        if (state == State.CLOSED && calls.closeBy() < Core.ALWAYS) return;
        double began = now(), closeBy = began + 0.95 * ttl;
        calls.closeBy(closeBy);
        cancel();
        awaitThrough(scopes::isEmpty, began + ttl / 2);
        String closing = session;
        if (closing != null) closeSession(closing, closeBy);
        event(now -> {
            core.close();
            if (line != null) disconnect(); // it was being made
        });
        calls.close();
    }
}
