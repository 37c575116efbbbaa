package eskit.lease;

import eskit.lease.LeaseException.Lost;
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

    private record Begin(String state, long fence, String result) {}

    private Attempt(Keeper keeper, String key, String session, long fence) {
        super(keeper, key, session, fence);
    }

    static Outcome once(Keeper keeper, String key, Function function) throws Exception {
        Runnable turn = keeper.turns.take("once " + key, Core.ALWAYS);
        try {
            for (; ; ) {
                String session = keeper.trusted(Core.ALWAYS);
                long noted = keeper.asks();
                Begin begin = begin(keeper, key, session);
                if (begin != null && begin.fence == 0) return new Outcome(false, begin.state, begin.result);
                if (begin != null) {
                    Attempt attempt = new Attempt(keeper, key, session, begin.fence);
                    if (keeper.begin(attempt)) return attempt.run(function);
                    // Asked again, the session gets this fence again. If it is not to ask again, the key is free.
                    String free = "eskit_lease.execution_fail(?::text, ?::bigint, ?::text, retry => true)";
                    if (keeper.isStopping()) attempt.end(free, "not begun");
                }
                keeper.await(() -> keeper.asks() > noted, Keeper.now() + Math.min(1_000, keeper.ttl / 6));
            }
        } finally {
            turn.run();
        }
    }

    /** Begins an attempt; null if no answer came. Asked again, the session gets the fence of its own attempt again. */
    private static Begin begin(Keeper keeper, String key, String session) throws SQLException {
        String sql = "SELECT state, fence, result::text FROM eskit_lease.execution_begin(?::text, ?::uuid)";
        try {
            return keeper.once(
                    session,
                    c -> Line.row(
                            c,
                            row -> new Begin(row.getString(1), row.getLong(2), row.getString(3)),
                            sql,
                            key,
                            session));
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
                fail(error);
                throw error;
            }
            end("eskit_lease.execution_finish(?::text, ?::bigint, ?::jsonb)", result);
            return new Outcome(true, "done", result);
        } finally {
            finish();
            keeper.end(this);
        }
    }

    /** Lets the next call run the function again; but not if it is unknown how far the function came. */
    private void fail(Throwable error) {
        boolean known = !(error instanceof Lost) && !(error instanceof LeaseException.Unsure);
        String sql = "SELECT eskit_lease.execution_fail(?::text, ?::bigint, ?::text, retry => ?::boolean)";
        try {
            keeper.repeat(session(), c -> Line.run(c, sql, name(), fence(), String.valueOf(error), known));
        } catch (SQLException ended) { // the key is in doubt; the function's error tells more
            error.addSuppressed(ended);
        }
    }

    private void end(String call, String value) throws SQLException {
        try {
            keeper.repeat(session(), c -> Line.run(c, "SELECT " + call, name(), fence(), value));
        } catch (SQLException error) {
            throw LeaseException.of(error);
        }
    }
}
