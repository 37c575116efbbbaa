package eskit.lease;

import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import org.postgresql.PGConnection;

/** A connection of the keeper, from the try to make it. Whatever it does can be given up, by `drop`. */
final class Line {
    interface Row<T> {
        T of(ResultSet row) throws SQLException;
    }

    static final String NOT_MADE = "08001"; // of a connection: no call was sent

    private final CompletableFuture<Connection> made = new CompletableFuture<>();
    private final Executor pool;

    /** Begins to connect, until a time. */
    Line(Callable<Connection> connector, double until, Executor pool) {
        this.pool = pool;
        made.orTimeout((long) (until - now()) + 1, TimeUnit.MILLISECONDS);
        pool.execute(() -> {
            try {
                Connection connection = connector.call();
                if (!connection.getAutoCommit()) connection.setAutoCommit(true);
                // A statement with a name would be missing on the pooler's next connection.
                connection.unwrap(PGConnection.class).setPrepareThreshold(0);
                if (!made.complete(connection)) connection.abort(pool);
            } catch (Throwable error) {
                made.completeExceptionally(error);
            }
        });
    }

    /** The monotonic clock of the library, in ms. */
    static double now() {
        return System.nanoTime() / 1e6;
    }

    /** Waits until it is connected. Any error of that is NOT_MADE, with what happened as its cause. */
    Connection connection() throws SQLException {
        try {
            return made.join();
        } catch (CompletionException error) {
            throw new SQLException("no connection: " + error.getCause(), NOT_MADE, error.getCause());
        }
    }

    /** Calls on the present thread, until a time: after it the connection is broken. */
    <T> List<T> rows(double until, Row<T> map, String sql, Object... values) throws SQLException {
        connection().setNetworkTimeout(pool, (int) Math.max(1, until - now()));
        return rows(connection(), map, sql, values);
    }

    /** Returns whether the server has not closed the connection, without a call: the driver reads for 1 ms. */
    boolean isOpen() {
        try {
            connection().unwrap(PGConnection.class).getNotifications(1);
            return !connection().isClosed();
        } catch (SQLException broken) {
            return false;
        }
    }

    /** Gives up what is under way, and closes the connection, without waiting for either. */
    void drop() {
        made.completeExceptionally(new SQLException("was given up"));
        made.thenAccept(connection -> {
            try {
                connection.abort(pool);
            } catch (SQLException ignored) { // it is closed already
            }
        });
    }

    /** Closes the connection, on which nothing is under way. */
    void close() {
        try {
            connection().close();
        } catch (SQLException ignored) { // it was not made, or is closed already
        }
    }

    static <T> List<T> rows(Connection connection, Row<T> map, String sql, Object... values) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            for (int i = 0; i < values.length; i++) statement.setObject(i + 1, values[i]);
            List<T> rows = new ArrayList<>();
            try (ResultSet row = statement.executeQuery()) {
                while (row.next()) rows.add(map.of(row));
            }
            return rows;
        }
    }

    static <T> T row(Connection connection, Row<T> map, String sql, Object... values) throws SQLException {
        return rows(connection, map, sql, values).get(0);
    }
}
