package eskit.lease;

import static eskit.lease.Line.now;

import java.sql.Connection;
import java.sql.SQLException;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;

/** The keeper's second connection: one call at a time. It opens with the first, and closes after a while without. */
final class Calls {
    private static final long IDLE = 10_000; // ms
    private static final double SURELY_OPEN = 100; // ms after a call

    private final Callable<Connection> connector;
    private final Executor pool;
    private Line line;
    private double last = Core.NEVER; // when the last call ended
    volatile double endsAt = Core.ALWAYS; // no call begins or goes on after this

    Calls(Callable<Connection> connector, Executor pool) {
        this.connector = connector;
        this.pool = pool;
    }

    /** Calls once. An answer that has not come after the limit, or by the end, is a lost connection. */
    synchronized <T> List<T> rows(double limit, Line.Row<T> map, String sql, Object... values) throws SQLException {
        double until = Math.min(now() + limit, endsAt);
        if (now() >= until) throw new SQLException("the keeper is closed", "08003");
        if (line == null) line = new Line(connector, until, pool);
        try {
            return line.rows(until, map, sql, values);
        } catch (SQLException error) {
            if (LeaseException.isBroken(error)) drop();
            throw error;
        } finally {
            last = now();
            CompletableFuture.delayedExecutor(IDLE, TimeUnit.MILLISECONDS, pool).execute(() -> closeAfter(IDLE));
        }
    }

    /** Drops a connection that has closed while it was idle. A call on it would be lost, or so it would seem. */
    synchronized void look() {
        if (line != null && now() > last + SURELY_OPEN && !line.isOpen()) drop();
    }

    /** Closes the connection, after the call under way, if it was idle for so long. */
    synchronized void closeAfter(double idle) {
        if (line == null || now() < last + idle) return;
        line.close();
        line = null;
    }

    private void drop() {
        line.drop();
        line = null;
    }
}
