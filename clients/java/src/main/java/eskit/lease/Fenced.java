package eskit.lease;

import eskit.lease.LeaseException.Unsure;
import java.sql.Connection;
import java.sql.SQLException;
import javax.sql.DataSource;
import org.postgresql.core.BaseConnection;
import org.postgresql.core.TransactionState;

/** A scope whose transactions check its fence. */
public abstract sealed class Fenced extends Scope permits Lead, Partition {
    /**
     * The work of a transaction.
     */
    public interface Work<T, X extends Exception> {
        /**
         * Works in the transaction, and neither commits nor rolls back.
         *
         * @return the result, or null
         * @throws SQLException an error of the database
         * @throws X any other error; each rolls back
         */
        T in(Connection transaction) throws SQLException, X;
    }

    Fenced(Keeper keeper, String name, String session, long fence) {
        super(keeper, name, session, fence);
    }

    /**
     * Checks the fence in the caller's transaction. Call it first, before the data is read.
     *
     * @param transaction a connection whose autocommit is off
     * @throws SQLException Lost, Refused, or the driver's error; roll back
     * @throws IllegalStateException if autocommit is on
     */
    public void guard(Connection transaction) throws SQLException {
        checked(
                transaction,
                c -> Line.row(c, row -> true, "SELECT eskit_lease.fence_check(?::text, ?::bigint)", name(), fence()));
    }

    /** Makes a call that checks the fence, in a transaction of a scope that is trusted. */
    <T> T checked(Connection transaction, Work<T, SQLException> call) throws SQLException {
        if (!isTrusted()) throw lost(null);
        if (transaction.getAutoCommit()) throw new IllegalStateException("the connection is in no transaction");
        try {
            return call.in(transaction);
        } catch (SQLException error) {
            throw LeaseException.of(error);
        }
    }

    /**
     * Runs a transaction on a connection of the source: begins, guards, works, commits.
     *
     * @param source gives the connection
     * @param work is called after the fence was checked
     * @return the work's result, once it is committed
     * @throws SQLException Lost, Refused, Unsure, or the driver's error
     * @throws X what the work throws, after a rollback
     */
    public <T, X extends Exception> T transaction(DataSource source, Work<T, X> work) throws SQLException, X {
        try (Connection connection = source.getConnection()) {
            return transaction(connection, work);
        }
    }

    /**
     * Runs a transaction on a connection that is in none, as {@link #transaction(DataSource, Work)} does.
     *
     * @param connection is used for this transaction
     * @param work is called after the fence was checked
     * @return the work's result, once it is committed
     * @throws SQLException Lost, Refused, Unsure, or the driver's error
     * @throws X what the work throws, after a rollback
     */
    public <T, X extends Exception> T transaction(Connection connection, Work<T, X> work) throws SQLException, X {
        return transact(this, connection, transaction -> {
            guard(transaction);
            return work.in(transaction);
        });
    }

    static <T, X extends Exception> T transact(Scope scope, Connection connection, Work<T, X> work)
            throws SQLException, X {
        boolean automatic = connection.getAutoCommit();
        connection.setAutoCommit(false);
        T result;
        try {
            result = work.in(connection);
            commit(scope, connection);
        } catch (Throwable error) {
            try {
                connection.rollback(); // with an open transaction setAutoCommit would commit it
                connection.setAutoCommit(automatic);
            } catch (SQLException broken) { // the error that led here tells more
            }
            if (error instanceof SQLException sql) throw LeaseException.of(sql);
            throw error;
        }
        connection.setAutoCommit(automatic);
        return result;
    }

    /** Nothing is unknown before COMMIT is sent. To a COMMIT that ROLLBACK answers, the driver raises no error. */
    private static void commit(Scope scope, Connection connection) throws SQLException {
        if (connection.isClosed()) throw new SQLException("the connection broke before the commit", "08003");
        if (connection.isWrapperFor(BaseConnection.class)
                && connection.unwrap(BaseConnection.class).getTransactionState() == TransactionState.FAILED)
            throw new SQLException("the transaction has failed, so it cannot commit", "25P02");
        try {
            connection.commit();
        } catch (SQLException error) {
            if (!LeaseException.isBroken(error)) throw error;
            scope.unsure();
            throw new Unsure(error);
        }
    }
}
