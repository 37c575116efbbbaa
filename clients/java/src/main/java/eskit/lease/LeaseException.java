package eskit.lease;

import java.sql.SQLException;

/** Tells what became of a fenced transaction. SQLSTATE stays readable, and the driver's error is the cause. */
@SuppressWarnings("serial")
public abstract sealed class LeaseException extends SQLException {
    private LeaseException(String message, SQLException cause) {
        super(message, cause == null ? null : cause.getSQLState(), cause);
    }

    /** The scope or its session has ended: begin anew, in a new scope. The keeper opens the next session. */
    public static final class Lost extends LeaseException {
        Lost(String message, SQLException cause) {
            super(message, cause);
        }
    }

    /** The transaction is rolled back (LF001, 55P03, 40001): ask again. */
    public static final class Refused extends LeaseException {
        Refused(SQLException cause) {
            super(cause.getMessage(), cause);
        }
    }

    /** The connection broke before COMMIT was answered: the transaction may still commit. Its scope has ended. */
    public static final class Unsure extends LeaseException {
        Unsure(SQLException cause) {
            super("the end of the transaction is unknown", cause);
        }
    }

    /** Returns whether the SQLSTATE says that the session has ended; 55000 does on a server before 0.3.0. */
    static boolean isEnd(String sqlstate) {
        return "LF003".equals(sqlstate) || "55000".equals(sqlstate);
    }

    /** Returns whether an error says that the session, or the membership in a group, has ended. */
    static boolean isOver(SQLException error) {
        return error instanceof Lost || isEnd(error.getSQLState());
    }

    /** Returns whether an error stays by its nature: no such group or right, or a value that is refused. */
    static boolean isLasting(SQLException error) {
        return String.valueOf(error.getSQLState()).matches("(0A|22|3F|42).*");
    }

    /** Returns what a fenced call raises: Lost, Refused, or the driver's own error. */
    static SQLException of(SQLException error) {
        if (error instanceof LeaseException || error.getSQLState() == null) return error;
        return switch (error.getSQLState()) {
            case "LF003", "55000" -> new Lost(error.getMessage(), error);
            case "LF001", "55P03", "40001" -> new Refused(error);
            default -> error;
        };
    }
}
