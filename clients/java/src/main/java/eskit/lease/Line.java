package eskit.lease;

import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.postgresql.PGConnection;

/** One connection with a thread of its own, from its first call to its end. Each call can be given up, by `drop`. */
final class Line {
    interface Call<T> {
        T on(Connection connection) throws SQLException;
    }

    private final Callable<Connection> connector;
    private final ExecutorService thread;
    private volatile Connection connection;
    private volatile boolean dropped;

    Line(String name, Callable<Connection> connector) {
        this.connector = connector;
        this.thread = Executors.newSingleThreadExecutor(work -> daemon(name, work));
    }

    /** The monotonic clock of the library, in ms. */
    static double now() {
        return System.nanoTime() / 1e6;
    }

    static Thread daemon(String name, Runnable work) {
        Thread thread = new Thread(work, name);
        thread.setDaemon(true);
        return thread;
    }

    /** Calls on the line's thread, and connects first if this is the first call. */
    <T> CompletableFuture<T> call(Call<T> call) {
        CompletableFuture<T> answer = new CompletableFuture<>();
        thread.execute(() -> {
            try {
                answer.complete(call.on(connection != null ? connection : connect()));
            } catch (Throwable error) {
                answer.completeExceptionally(error);
            }
        });
        return answer;
    }

    private Connection connect() throws Exception {
        Connection made = connector.call();
        if (!made.getAutoCommit()) made.setAutoCommit(true);
        // A statement with a name would be missing on the pooler's next connection.
        if (made.isWrapperFor(PGConnection.class))
            made.unwrap(PGConnection.class).setPrepareThreshold(0);
        connection = made;
        if (dropped) drop();
        return made;
    }

    /** Returns whether the connection could be made: if not, any error is one of connecting. */
    boolean isUp() {
        return connection != null;
    }

    /** Looks whether the server has closed the connection, without a call: the driver reads for 1 ms. */
    static boolean look(Connection connection) throws SQLException {
        if (connection.isWrapperFor(PGConnection.class))
            connection.unwrap(PGConnection.class).getNotifications(1);
        return !connection.isClosed();
    }

    /** Gives up the call under way, and closes the connection, without waiting for either. */
    void drop() {
        dropped = true;
        thread.shutdownNow();
        Connection gone = connection;
        if (gone == null) return; // `connect` sees that the line is dropped
        daemon("eskit-lease abort", () -> {
                    try {
                        gone.abort(Runnable::run);
                    } catch (SQLException ignored) { // it is closed already
                    }
                })
                .start();
    }

    /** Closes the connection politely, after the call under way. */
    void close() {
        call(gone -> {
            ResettableSockets.close(gone);
            return null;
        });
        thread.shutdown();
    }

    /** Returns whether the error says that the connection is lost, or that an answer did not come in time. */
    static boolean isBroken(Throwable error) {
        if (!(error instanceof SQLException sql)) return true;
        String state = String.valueOf(sql.getSQLState());
        return state.equals("null") || state.startsWith("08") || state.startsWith("57P");
    }

    interface Row<T> {
        T of(ResultSet row) throws SQLException;
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

    /** Calls a function whose answer tells nothing that the caller needs. */
    static boolean run(Connection connection, String sql, Object... values) throws SQLException {
        return !rows(connection, row -> true, sql, values).isEmpty();
    }
}
