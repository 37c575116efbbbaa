package eskit.lease;

import eskit.lease.LeaseException.Lost;
import eskit.lease.LeaseException.Unsure;
import java.sql.SQLException;

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

    private record Begin(String state, long fence, String result) {}

    private Attempt(Keeper keeper, String key, String session, long fence) {
        super(keeper, key, session, fence);
    }

    static Outcome once(Keeper keeper, String key, Function function) throws Exception {
        Runnable turn = keeper.turns.take("once " + key, Core.ALWAYS);
        String asked = null; // the session that may have an attempt which has not begun
        try {
            while (true) {
                String session = keeper.trusted(Core.ALWAYS);
                long noted = keeper.asks();
                Begin begin = begin(keeper, key, session);
                asked = begin == null || begin.fence != 0 ? session : null;
                if (begin != null && begin.fence == 0) return new Outcome(false, begin.state, begin.result);
                if (begin != null) {
                    if (keeper.used.contains(key + " " + begin.fence)) { // and the server refused to end it
                        asked = null;
                        if (keeper.fail(session, FAIL, key, begin.fence, "its end was refused", false)) continue;
                        return new Outcome(false, "running", null);
                    }
                    Attempt attempt = new Attempt(keeper, key, session, begin.fence);
                    if (keeper.begin(attempt)) {
                        asked = null;
                        return attempt.run(function);
                    }
                }
                keeper.await(() -> keeper.asks() > noted, keeper.retryAt());
            }
        } finally {
            String session = asked;
            if (session == null) turn.run();
            else keeper.giveBack(session, () -> abandon(keeper, key, session), turn);
        }
    }

    /** Frees the key from an attempt that has not begun: asked again, the session gets its fence. */
    private static void abandon(Keeper keeper, String key, String session) throws SQLException {
        long fence = keeper.repeat(session, row -> row.getLong(2), BEGIN, key, session);
        if (fence != 0) keeper.fail(session, FAIL, key, fence, "not begun", true);
    }

    /** Begins an attempt; null if no answer came. Asked again, the session gets the fence of its own attempt again. */
    private static Begin begin(Keeper keeper, String key, String session) throws SQLException {
        try {
            return keeper.rows(
                            session,
                            row -> new Begin(row.getString(1), row.getLong(2), row.getString(3)),
                            BEGIN,
                            key,
                            session)
                    .get(0);
        } catch (SQLException error) {
            if (error instanceof Lost || Keeper.passes(error)) return null;
            throw error;
        }
    }

    private void fail(Throwable error, boolean retry) {
        if (!keeper.fail(session(), FAIL, name(), fence(), error, retry)) keeper.used.add(name() + " " + fence());
    }

    private Outcome run(Function function) throws Exception {
        try {
            String result;
            try {
                result = function.call(this);
            } catch (Throwable error) {
                // The next call may run the function again, unless it is unknown how far this one came.
                boolean known = !(error instanceof Lost) && !(error instanceof Unsure);
                fail(error, known);
                throw error;
            }
            try {
                keeper.repeat(session(), row -> true, FINISH, name(), fence(), result);
            } catch (SQLException error) {
                // Refused, as it is no JSON, say. Asked again, the server would answer this fence, which is used.
                if (!Keeper.passes(error)) fail(error, false);
                throw LeaseException.of(error);
            }
            return new Outcome(true, "done", result);
        } finally {
            finish();
            keeper.end(this);
        }
    }
}
