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
        try {
            while (true) {
                String session = keeper.trusted(Core.ALWAYS);
                long noted = keeper.asks();
                Begin begin = begin(keeper, key, session);
                if (begin != null && begin.fence == 0) return new Outcome(false, begin.state, begin.result);
                if (begin != null) {
                    Attempt attempt = new Attempt(keeper, key, session, begin.fence);
                    if (keeper.begin(attempt)) return attempt.run(function);
                    // Asked again, the session gets this fence again. If it is not to ask again, the key is free.
                    if (keeper.isStopping()) keeper.settle(session, FAIL, key, begin.fence, "not begun", true);
                }
                keeper.await(() -> keeper.asks() > noted, keeper.retryAt());
            }
        } finally {
            turn.run();
        }
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

    private Outcome run(Function function) throws Exception {
        try {
            String result;
            try {
                result = function.call(this);
            } catch (Throwable error) {
                // The next call may run the function again, unless it is unknown how far this one came.
                boolean known = !(error instanceof Lost) && !(error instanceof Unsure);
                keeper.settle(session(), FAIL, name(), fence(), String.valueOf(error), known);
                throw error;
            }
            try {
                keeper.repeat(session(), row -> true, FINISH, name(), fence(), result);
            } catch (SQLException error) {
                throw LeaseException.of(error);
            }
            return new Outcome(true, "done", result);
        } finally {
            finish();
            keeper.end(this);
        }
    }
}
