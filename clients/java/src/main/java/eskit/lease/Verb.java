package eskit.lease;

import eskit.lease.LeaseException.Lost;
import java.lang.System.Logger.Level;
import java.sql.SQLException;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Predicate;

/**
 * A verb at work, on a thread of the keeper, in the turn of its name: the scopes of one name follow one another within
 * the process, as they would get the same fence. It takes nothing more once its caller wants no more.
 */
abstract class Verb<T> {
    /** Looks at what there is to do. */
    interface Look<R> {
        /** Returns what it has found; null to be asked again. */
        R at(String session) throws SQLException;
    }

    final Keeper keeper;
    final CompletableFuture<Void> ended = new CompletableFuture<>();
    final String turn; // the verb and its name
    private final CompletableFuture<T> given = new CompletableFuture<>(); // null: to a caller that has gone
    private final AtomicLong rings = new AtomicLong();
    final Map<Object, Scope> tasks = new ConcurrentHashMap<>(); // what it runs, by partition or item
    private double again; // when to look if nothing happens before

    Verb(Keeper keeper, String turn) {
        this.keeper = keeper;
        this.turn = turn;
    }

    /** Does all of it, and gives everything back before it ends. */
    abstract void run() throws Exception;

    final void start() {
        requireOpen();
        keeper.pool.execute(this::live);
    }

    private void requireOpen() {
        if (keeper.isStopping()) throw new IllegalStateException("the keeper drains or is closed");
    }

    /** Runs the work of a scope on a thread of its own; false if it may not begin any more. */
    final boolean start(Object key, Scope scope, Runnable work) {
        if (!scope.begin()) return false;
        tasks.put(key, scope);
        Runnable task = () -> {
            try {
                work.run();
            } finally {
                scope.finish();
                tasks.remove(key);
                keeper.end(scope);
                ring();
            }
        };
        Keeper.daemon("eskit-lease " + turn + " " + key, task).start();
        return true;
    }

    private void live() {
        Throwable failure = null;
        try {
            keeper.await(() -> isStopping() || keeper.turns.putIfAbsent(turn, this) == null, Core.ALWAYS);
            if (keeper.turns.get(turn) == this) run();
        } catch (Throwable error) {
            failure = error;
        }
        keeper.turns.remove(turn, this);
        if (failure != null) given.completeExceptionally(failure);
        if (failure != null) ended.completeExceptionally(failure);
        else ended.complete(null);
        give(null);
    }

    /** Gives the caller what it waits for. Returns false if it has gone, or has been given something. */
    final boolean give(T value) {
        boolean isTaken = given.complete(value);
        keeper.nudge();
        return isTaken;
    }

    /** Waits, as the caller, for what the verb gives: null if that did not come by then. */
    final T take(double until) throws SQLException, InterruptedException {
        try {
            given.get((long) ((until - Line.now()) * 1e6), TimeUnit.NANOSECONDS);
        } catch (InterruptedException error) {
            if (give(null)) throw error;
            Thread.currentThread().interrupt(); // it came all the same
        } catch (ExecutionException | TimeoutException told) { // below
        }
        give(null);
        T value = join(given);
        if (value == null) requireOpen();
        return value;
    }

    /** Returns what a stage has, or throws the error with which it has failed. */
    static <R> R join(CompletableFuture<R> stage) throws SQLException {
        try {
            return stage.join();
        } catch (CompletionException error) {
            if (error.getCause() instanceof SQLException cause) throw cause;
            throw error;
        }
    }

    /** Wants no more of the verb, and waits until it has ended. */
    final void end() {
        give(null);
        ended.handle((done, error) -> done).join();
    }

    final boolean isStopping() {
        return given.isDone() || keeper.isStopping();
    }

    /** Looks again soon. */
    final void ring() {
        rings.incrementAndGet();
        keeper.nudge();
    }

    /** Looks again at that time, unless something happens before. */
    final void again(double time) {
        again = Math.min(again, time);
    }

    final long count() {
        return keeper.asks() + rings.get();
    }

    /** Looks when new work may begin, and at each ask or ring, until that finds something or ends; null if it is to stop. */
    final <R> R look(Look<R> look, Predicate<SQLException> ends) throws SQLException, InterruptedException {
        String told = ""; // the last error, until a look succeeds: one line for many tries
        while (!isStopping()) {
            long seen = count();
            String session = keeper.trusted();
            again = session == null ? keeper.retryAt() : Core.ALWAYS; // as trust may come back without an ask
            try {
                R found = session == null ? null : look.at(session);
                if (found != null) return found;
                told = "";
            } catch (SQLException error) {
                if (ends.test(error)) throw error;
                again(keeper.retryAt());
                if (!(error instanceof Lost) && !told.equals(error.getMessage()))
                    keeper.log(Level.WARNING, turn + " asks again after: " + error);
                told = String.valueOf(error.getMessage());
            }
            keeper.await(() -> isStopping() || count() > seen, again);
        }
        return null;
    }
}
