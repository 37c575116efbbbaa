package eskit.lease;

import eskit.lease.Core.Answer;
import java.sql.SQLException;
import java.util.function.Consumer;

/** The calls of the keeper's connection: each is answered by what the core wants to know of the session. */
final class SessionSql {
    private static final String COLUMNS = "SELECT alive, trust_ms, revision, reason, NULL::text FROM eskit_lease.";
    private static final String OPEN = "SELECT true, trust_ms, revision, '', session::text"
            + " FROM eskit_lease.session_open(?::text, ?::interval, takeover => ?::boolean)";
    private static final String WAIT = COLUMNS + "session_wait(?::uuid, ?::bigint, ?::interval)";
    private static final String BEAT = COLUMNS + "session_heartbeat(?::uuid)";
    static final String WATCH = COLUMNS + "session_watch(?::uuid, ?::text::regclass)";

    private final Settings settings;
    private final Consumer<String> warn;
    private volatile String warned; // the last error of the watch: one line for many tries

    SessionSql(Settings settings, Consumer<String> warn) {
        this.settings = settings;
        this.warn = warn;
    }

    Line.Call<Answer> open(boolean takeover) {
        return call(OPEN, settings.name(), settings.ttl().toMillis() + " ms", takeover);
    }

    Line.Call<Answer> await(String session, long timeoutMs, long revision) {
        return call(WAIT, session, revision, timeoutMs + " ms");
    }

    /** A table that cannot be watched must not end the session: the heartbeat is a plain one then. */
    Line.Call<Answer> beat(String session) {
        Line.Call<Answer> plain = call(BEAT, session);
        if (settings.watch() == null) return plain;
        return connection -> {
            try {
                return call(WATCH, session, settings.watch()).on(connection);
            } catch (SQLException error) {
                if (!String.valueOf(error.getSQLState()).startsWith("42")) throw error;
                if (!error.getMessage().equals(warned)) warn.accept("cannot watch: " + error.getMessage());
                warned = error.getMessage();
                return plain.on(connection);
            }
        };
    }

    private static Line.Call<Answer> call(String sql, Object... values) {
        Line.Row<Answer> map = row ->
                new Answer(row.getBoolean(1), row.getDouble(2), row.getLong(3), row.getString(4), row.getString(5));
        return connection -> Line.row(connection, map, sql, values);
    }
}
