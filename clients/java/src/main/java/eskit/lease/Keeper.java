package eskit.lease;

import static eskit.lease.Line.now;

import eskit.lease.Core.Answer;
import eskit.lease.LeaseException.Lost;
import java.lang.System.Logger.Level;
import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import java.util.function.Consumer;
import java.util.function.DoubleConsumer;
import java.util.function.Supplier;

/**
 * Does what the core decides, on the keeper's connection. Gives the verbs what they wait for and call. Its monitor
 * guards the core, and is never held over a call on the network.
 */
final class Keeper implements Core.Actions {
    private static final System.Logger LOG = System.getLogger("eskit.lease");
    private static final String COLUMNS = "SELECT alive, trust_ms, revision, reason, NULL::text FROM eskit_lease.";
    private static final String OPEN = "SELECT true, trust_ms, revision, '', session::text"
            + " FROM eskit_lease.session_open(?::text, ?::interval, takeover => ?::boolean)";
    private static final String WAIT = COLUMNS + "session_wait(?::uuid, ?::bigint, ?::interval)";
    private static final String BEAT = COLUMNS + "session_heartbeat(?::uuid)";
    private static final String WATCH = COLUMNS + "session_watch(?::uuid, ?::text::regclass)";
    private static final String DRAIN = "SELECT eskit_lease.session_drain(?::uuid)";
    private static final String CLOSE = "SELECT eskit_lease.session_close(?::uuid)";
    private static final Line.Row<Answer> ANSWER =
            row -> new Answer(row.getBoolean(1), row.getDouble(2), row.getLong(3), row.getString(4), row.getString(5));

    final double ttl; // ms
    final ExecutorService pool = Executors.newCachedThreadPool(work -> daemon("eskit-lease", work));
    final Map<String, Object> turns = new ConcurrentHashMap<>(); // the verb at work of each name
    final Set<Long> used = ConcurrentHashMap.newKeySet(); // fences that the server has refused to take back
    final Calls calls;
    private final Callable<Connection> source;
    private final String name, watch;
    private final Consumer<State> onState;
    private final Core core;
    private final Map<Object, Runnable> scopes = new ConcurrentHashMap<>(); // each with its cancellation
    private Line line; // the one whose events count
    private Supplier<DoubleConsumer> due; // what the event decides to do on it; returns the event of its end
    private CompletableFuture<Void> told = CompletableFuture.completedFuture(null);
    private String warned, watchWarned; // the last warnings: one line for many tries
    private State state = State.STARTING; // the last that was told
    private long asks;
    private double tickAt = Core.ALWAYS; // when the next one is due
    private double hurryAt = Core.ALWAYS; // when a drain cancels what is left
    private CompletableFuture<Void> ended; // null until a drain begins
    private volatile String replaced; // the session that the keeper closes, to have another
    private volatile Exception lastError;

    Keeper(Callable<Connection> source, String name, double ttl, boolean takeover, String watch, Consumer<State> hook) {
        this.source = source;
        this.name = name;
        this.ttl = ttl;
        this.watch = watch;
        this.onState = hook;
        calls = new Calls(source, pool);
        core = new Core(ttl, takeover, watch != null, Math::random, this);
        event(core::tick);
    }

    static Thread daemon(String name, Runnable work) {
        Thread thread = new Thread(work, name);
        thread.setDaemon(true);
        return thread;
    }

    // ---- events ----

    private void event(DoubleConsumer event) {
        Supplier<DoubleConsumer> first = happen(event);
        if (first == null) return;
        pool.execute(() -> {
            for (Supplier<DoubleConsumer> use = first; use != null; ) use = happen(use.get());
        });
    }

    /** Returns what is to be done on the core's connection now, after all that wait have been woken. */
    private synchronized Supplier<DoubleConsumer> happen(DoubleConsumer event) {
        due = null;
        event.accept(now());
        State next = state();
        if (next != state) {
            boolean isBad = next == State.DOUBTING || next == State.LOST;
            log(isBad ? Level.WARNING : Level.INFO, state + " -> " + next);
            tell(() -> onState.accept(next));
            state = next;
        }
        double deadline = core.deadline();
        if (deadline < tickAt) tickAt(deadline);
        notifyAll();
        return due;
    }

    /** Ticks in time, whatever the connections do. */
    private void tickAt(double deadline) {
        tickAt = deadline;
        long ms = (long) Math.ceil(deadline - now());
        CompletableFuture.delayedExecutor(ms, TimeUnit.MILLISECONDS, pool)
                .execute(() -> event(now -> {
                    if (tickAt == deadline) tickAt = Core.ALWAYS;
                    core.tick(now);
                }));
    }

    void log(Level level, String text) {
        tell(() -> log(level, name, text));
    }

    /** Has a name, as java.util.logging tells the method that logs. */
    private static void log(Level level, String name, String text) {
        LOG.log(level, "keeper " + name + ": " + text);
    }

    /** Logging and hooks run in order, on threads of their own: they may be slow. */
    private synchronized void tell(Runnable action) {
        told = told.thenRunAsync(action, pool).exceptionally(error -> null);
    }

    // ---- actions of the core ----

    @Override
    public void connect() {
        Line mine = new Line(source, now() + ttl / 2, pool);
        line = mine;
        use(() -> {
            mine.connection();
            return core::connected;
        });
    }

    @Override
    public void disconnect() {
        line.drop();
        line = null;
    }

    @Override
    public void call(Core.Call call) {
        Line mine = line;
        use(() -> {
            Answer answer = answer(mine, call, now() + ttl / 2);
            return now -> {
                warned = null;
                core.answered(now, answer);
            };
        });
    }

    private Answer answer(Line mine, Core.Call call, double until) throws SQLException {
        if (call.kind() == Core.Kind.OPEN)
            return mine.rows(until, ANSWER, OPEN, name, ttl + " ms", call.takeover())
                    .get(0);
        if (call.kind() == Core.Kind.WAIT)
            return mine.rows(until, ANSWER, WAIT, call.session(), call.revision(), call.timeoutMs() + " ms")
                    .get(0);
        try {
            if (watch != null)
                return mine.rows(until, ANSWER, WATCH, call.session(), watch).get(0);
        } catch (SQLException error) { // must not end the session: the heartbeat is a plain one then
            if (!LeaseException.isLasting(error)) throw error;
            if (!error.getMessage().equals(watchWarned)) log(Level.WARNING, "cannot watch: " + error.getMessage());
            watchWarned = error.getMessage();
        }
        return mine.rows(until, ANSWER, BEAT, call.session()).get(0);
    }

    /** Uses the core's connection next. Tells it what became of that, unless it has another one by now. */
    private void use(Callable<DoubleConsumer> use) {
        Line mine = line;
        due = () -> {
            DoubleConsumer result;
            try {
                result = use.call();
            } catch (Exception error) {
                result = now -> failed(now, error);
            }
            DoubleConsumer told = result;
            return now -> {
                if (line == mine) told.accept(now);
            };
        };
    }

    private void failed(double now, Exception error) {
        lastError = error.getCause() instanceof SQLException cause ? cause : error; // that of the try to connect
        if (error instanceof SQLException refused && !LeaseException.isBroken(refused)) {
            core.failed(now, refused.getSQLState());
            return;
        }
        warn("a lost connection");
        disconnect();
        core.disconnected(now);
    }

    @Override
    public void cancel() {
        scopes.values().forEach(Runnable::run);
    }

    @Override
    public void ask() {
        asks++;
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
            return calls.rows(ttl / 2, map, sql, values);
        } catch (SQLException error) {
            if (!"LF003".equals(error.getSQLState())) throw error;
            heard(session, now(), false, 0);
            throw new Lost(error.getMessage(), error);
        }
    }

    /** Repeats a call that breaks, until it is answered, the session is known to have ended, or the keeper closes. */
    <T> List<T> repeat(String session, Line.Row<T> map, String sql, Object... values) throws SQLException {
        for (double pause = 100; ; pause = Math.min(2 * pause, 1_000)) {
            if (!session.equals(session()) && !session.equals(replaced)) throw new Lost("the session has ended", null);
            try {
                return rows(session, map, sql, values);
            } catch (SQLException error) {
                if (!LeaseException.passes(error) || now() + pause > calls.endsAt) throw error;
                if (pause == 800) log(Level.WARNING, "calls again after: " + error); // once
            }
            rest(() -> false, now() + pause);
        }
    }

    /**
     * Gives something back, which has no end but that of the session. Returns the answer. The statement has no FROM, as
     * its wait for fenced transactions is limited: the server does not notice that a call is given up, and would go on
     * waiting beside the next one.
     */
    Object giveBack(String session, String sql, Object... values) throws SQLException {
        String limited = sql + " FROM set_config('lock_timeout', '" + (long) ttl / 4 + " ms', true)";
        return repeat(session, row -> row.getObject(1), limited, values).get(0);
    }

    /** Gives something back. Returns the answer; false if nothing was left to give, null if the server has refused. */
    Object settle(String session, String sql, Object... values) {
        try {
            return giveBack(session, sql, values);
        } catch (SQLException error) {
            if (LeaseException.isSettled(error)) return false;
            log(Level.WARNING, "something could not be given back: " + error);
            return null;
        }
    }

    /**
     * Gives an item or a key back with the text of an error, the third of the values. A text that the server refuses is
     * replaced: else the item would stay claimed for as long as the session lives.
     */
    boolean fail(String session, String sql, Object... values) {
        values[2] = LeaseException.textOf(values[2]);
        if (settle(session, sql, values) != null) return true;
        values[2] = LeaseException.NO_TEXT;
        log(Level.WARNING, LeaseException.NO_TEXT);
        return settle(session, sql, values) != null;
    }

    /** Tells the core what an answer on another connection says about the session. */
    void heard(String of, double sent, boolean alive, double trustMs) {
        event(now -> {
            if (of.equals(core.session)) core.heard(now, sent, alive, trustMs);
        });
    }

    /** Closes the session, whose state is not to be found out, and lets another open. */
    void replace(String former, String why) {
        event(now -> {
            if (!former.equals(core.session)) return;
            log(Level.WARNING, "closes the session: " + why);
            replaced = former;
            core.replaced(now);
        });
        settle(former, CLOSE, former);
    }

    // ---- what the verbs wait for ----

    synchronized long asks() {
        return asks;
    }

    synchronized String session() {
        return core.session;
    }

    /** Returns the session under which new work may begin; null if there is none. */
    synchronized String trusted() {
        return state() == State.TRUSTED ? core.session : null;
    }

    synchronized State state() {
        return core.state(now());
    }

    /** Returns whether work under this session may begin: looks at the clock, as a stopped process could not tick. */
    synchronized boolean trusts(String session) {
        return session.equals(core.session) && now() < core.trustedUntil;
    }

    synchronized boolean isStopping() {
        return ended != null;
    }

    /** Returns when to ask again after an answer that no ask will follow. */
    double retryAt() {
        return now() + Math.min(1_000, ttl / 6);
    }

    /** Waits until `done` holds, and returns whether it does by then. */
    synchronized boolean await(BooleanSupplier done, double until) throws InterruptedException {
        while (!done.getAsBoolean()) {
            double left = until - now();
            if (left <= 0) return false;
            wait((long) Math.ceil(Math.min(left, 60_000)));
        }
        return true;
    }

    /** Waits as `await`, through interrupts, as work may leave one on its thread. */
    void rest(BooleanSupplier done, double until) {
        try {
            await(done, until);
        } catch (InterruptedException later) {
            rest(done, until);
            Thread.currentThread().interrupt();
        }
    }

    /** Lets all that wait look again. */
    synchronized void nudge() {
        notifyAll();
    }

    /** Hands a scope out; false if its session, or the trust in it, has ended meanwhile. `cancel` never waits. */
    synchronized boolean begin(Object scope, String session, Runnable cancel) {
        boolean mayBegin = !isStopping() && trusts(session);
        if (mayBegin) scopes.put(scope, cancel);
        return mayBegin;
    }

    void end(Object scope) {
        scopes.remove(scope);
        nudge();
    }

    // ---- open, drain and close ----

    void open(Duration patience) throws SQLException, InterruptedException {
        boolean isOpen = false;
        try {
            await(() -> trusted() != null, now() + patience.toMillis());
            String first = trusted();
            if (first == null && lastError instanceof SQLException error) throw error;
            if (first == null) throw new SQLException("no session within " + patience, "08001", lastError);
            // Raises what the heartbeats only warn of.
            if (watch != null) repeat(first, row -> true, WATCH, first, watch);
            isOpen = true;
        } finally {
            if (!isOpen) drain(Duration.ZERO);
        }
    }

    void drain(Duration time) {
        synchronized (this) {
            hurryAt = Math.min(hurryAt, now() + time.toMillis());
            if (ended == null) ended = CompletableFuture.runAsync(this::end, pool);
            asks++; // wakes all that wait
            notifyAll();
        }
        ended.join();
    }

    /** Lets what has begun finish. When the time is over, cancels the rest, and closes the session, within one TTL. */
    private void end() {
        String last = session();
        event(now -> core.drain());
        if (last != null && now() < hurryAt) pool.execute(() -> settle(last, DRAIN, last));
        rest(() -> turns.isEmpty() || now() >= hurryAt, hurryAt);
        calls.endsAt = now() + ttl / 2;
        cancel();
        rest(turns::isEmpty, calls.endsAt);
        calls.endsAt = now() + 0.45 * ttl;
        String closing = session();
        if (closing != null) settle(closing, CLOSE, closing);
        calls.endsAt = Core.NEVER;
        event(now -> {
            core.close();
            if (line != null) disconnect(); // it was being made
        });
        calls.closeAfter(Core.NEVER);
    }
}
