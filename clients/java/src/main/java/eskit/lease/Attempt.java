package eskit.lease;

import eskit.lease.LeaseException.Lost;
import eskit.lease.LeaseException.Unsure;
import java.sql.SQLException;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;

/** An attempt at a run-once key. */
public final class Attempt extends Scope {
    /** The function of a run-once key. */
    @FunctionalInterface
    public interface Function {
        /**
         * Does the effect.
         *
         * @param attempt the scope; pass its fence on to a system that can refuse older ones
         * @return the result, as JSON text, or null
         * @throws Exception fails the key, and is thrown on
         */
        String call(Attempt attempt) throws Exception;
    }

    /**
     * What became of a run-once key.
     *
     * @param first whether this call ran the function
     * @param state done, running, failed or in_doubt
     * @param result the result of a key that is done, as JSON text, or null
     */
    public record Outcome(boolean first, String state, String result) {}

    private static final String BEGIN =
            "SELECT state, fence, result::text FROM eskit_lease.execution_begin(?::text, ?::uuid)";
    private static final String FINISH = "SELECT eskit_lease.execution_finish(?::text, ?::bigint, ?::jsonb)";
    private static final String FAIL =
            "SELECT eskit_lease.execution_fail(?::text, ?::bigint, ?::text, retry => ?::boolean)";

    private record Begin(String state, long fence, String result) {
        static final Line.Row<Begin> ROW = row -> new Begin(row.getString(1), row.getLong(2), row.getString(3));
    }

    /** A call for a key. It gives an attempt, or else has the outcome of the key. */
    private static final class Try extends Verb<Attempt> {
        private final String key;
        private Outcome outcome;

        Try(Keeper keeper, String key) {
            super(keeper, "once " + key);
            this.key = key;
        }

        @Override
        void run() throws SQLException, InterruptedException {
            Optional<Attempt> begun = look(this::begin, LeaseException::isFinal);
            if (begun != null && begun.isPresent()) finish(begun.get());
        }

        /** Begins an attempt. Asked again, the session gets the fence of its own attempt again. */
        private Optional<Attempt> begin(String session) throws SQLException {
            keeper.calls.look();
            Begin begin = keeper.repeat(session, Begin.ROW, BEGIN, key, session).get(0);
            Attempt attempt = new Attempt(this, session, begin.fence);
            boolean isUsed = keeper.used.contains(begin.fence); // and the server refused to end it
            if (begin.fence == 0) outcome = new Outcome(false, begin.state, begin.result);
            else if (isUsed && !fail(attempt, "its end was refused", false))
                outcome = new Outcome(false, "running", null);
            else if (isUsed) return begin(session);
            if (outcome != null) return Optional.empty();
            if (attempt.begin() && give(attempt)) return Optional.of(attempt);
            keeper.end(attempt);
            fail(attempt, "not begun", true);
            return null;
        }

        /** Waits until the function has ended, and tells that. */
        private void finish(Attempt attempt) throws SQLException {
            try {
                String result = attempt.returned.join();
                keeper.repeat(attempt.session(), row -> true, FINISH, key, attempt.fence(), result);
            } catch (CompletionException thrown) {
                Throwable error = thrown.getCause();
                // The next call may run the function again, unless it is unknown how far this one came.
                fail(attempt, error, !(error instanceof Lost) && !(error instanceof Unsure));
            } catch (SQLException error) {
                // Refused, as it is no JSON, say. Asked again, the server would answer this fence, which is used.
                if (!LeaseException.passes(error)) fail(attempt, error, false);
                throw LeaseException.of(error);
            } finally {
                attempt.finish();
                keeper.end(attempt);
            }
        }

        private boolean fail(Attempt attempt, Object error, boolean retry) {
            boolean isTold = keeper.fail(attempt.session(), FAIL, key, attempt.fence(), error, retry);
            if (!isTold) keeper.used.add(attempt.fence());
            return isTold;
        }
    }

    private final CompletableFuture<String> returned = new CompletableFuture<>(); // the function, with its result
    private final Try life;

    private Attempt(Try life, String session, long fence) {
        super(life.keeper, life.key, session, fence);
        this.life = life;
    }

    static Outcome once(Keeper keeper, String key, Function function) throws Exception {
        Try life = new Try(keeper, key);
        life.start();
        Attempt attempt = life.take(Core.ALWAYS);
        return attempt == null ? life.outcome : attempt.call(function);
    }

    private Outcome call(Function function) throws Exception {
        try {
            returned.complete(function.call(this));
        } catch (Throwable error) {
            returned.completeExceptionally(error);
            life.end();
            throw error;
        }
        Verb.join(life.ended);
        return new Outcome(true, "done", returned.join());
    }
}
