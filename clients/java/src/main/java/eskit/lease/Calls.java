package eskit.lease;

import eskit.lease.LeaseException.Lost;
import java.sql.Connection;
import java.sql.SQLException;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReentrantLock;

/** The keeper's second connection: one call at a time. It opens with the first, and closes after a while without. */
final class Calls {
    private static final long IDLE_SECONDS = 10;
    private static final double SURELY_OPEN = 100; // ms after a call

    private final Callable<Connection> connector;
    private final double limit; // ms, for each call
    private final Executor pool;
    private final ReentrantLock turn = new ReentrantLock(true);
    private volatile double closeBy = Core.ALWAYS; // no call begins or goes on after this
    private Line line;
    private long count;
    private double last; // when the last call ended

    Calls(Callable<Connection> connector, double limit, Executor pool) {
        this.connector = connector;
        this.limit = limit;
        this.pool = pool;
    }

    /** Calls once. LF003 is Lost; an answer that does not come in time is a lost connection. */
    <T> List<T> rows(Line.Row<T> map, String sql, Object... values) throws SQLException {
        turn.lock();
        try {
            double left = Math.min(limit, closeBy - Line.now());
            if (left <= 0) throw new SQLException("the keeper is closed", "08003");
            if (line != null && Line.now() > last + SURELY_OPEN && !isOpen()) {
                line.drop();
                line = null;
            }
            if (line == null) line = new Line("eskit-lease calls", connector);
            return line.call(connection -> Line.rows(connection, map, sql, values))
                    .orTimeout((long) left + 1, TimeUnit.MILLISECONDS)
                    .join();
        } catch (CompletionException failed) {
            Throwable cause = failed.getCause();
            boolean up = line.isUp();
            if (!up || Line.isBroken(cause)) {
                line.drop();
                line = null;
            }
            if (!up || !(cause instanceof SQLException error))
                throw new SQLException("no answer: " + cause, "08006", cause);
            throw "LF003".equals(error.getSQLState()) ? new Lost(error.getMessage(), error) : error;
        } finally {
            last = Line.now();
            long mine = ++count;
            CompletableFuture.delayedExecutor(IDLE_SECONDS, TimeUnit.SECONDS, pool)
                    .execute(() -> closeAfter(mine));
            turn.unlock();
        }
    }

    /** A call on a connection that has closed while it was idle would be lost, or so it would seem. */
    private boolean isOpen() {
        try {
            return line.call(Line::look)
                    .orTimeout((long) limit, TimeUnit.MILLISECONDS)
                    .join();
        } catch (CompletionException broken) {
            return false;
        }
    }

    private void closeAfter(long last) {
        turn.lock();
        try {
            if (count == last) closeLine();
        } finally {
            turn.unlock();
        }
    }

    private void closeLine() {
        if (line != null) line.close();
        line = null;
    }

    double closeBy() {
        return closeBy;
    }

    void closeBy(double time) {
        closeBy = time;
    }

    /** Closes for good. */
    void close() {
        closeBy = Line.now();
        turn.lock();
        try {
            closeLine();
        } finally {
            turn.unlock();
        }
    }
}
