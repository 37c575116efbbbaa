package eskit.lease;

import java.sql.SQLException;

/** Tells what became of a fenced transaction. SQLSTATE stays readable, and the driver's error is the cause. */
@SuppressWarnings("serial")
public abstract sealed class LeaseException extends SQLException {
    /** Stands for a text that the server refuses, as its encoding lacks a letter. */
    static final String NO_TEXT = "the error's text could not be stored";

    private LeaseException(String message, Throwable cause) {
        super(message, cause instanceof SQLException error ? error.getSQLState() : null, cause);
    }

    /** The scope or its session has ended: begin anew, in a new scope. The keeper opens the next session. */
    public static final class Lost extends LeaseException {
        Lost(String message, Throwable cause) {
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

    /** Returns what a fenced call raises: Lost, Refused, or the driver's own error. */
    static SQLException of(SQLException error) {
        if (error instanceof LeaseException) return error;
        return switch (String.valueOf(error.getSQLState())) {
            case "LF003", "55000" -> new Lost(error.getMessage(), error);
            case "LF001", "55P03", "40001" -> new Refused(error);
            default -> error;
        };
    }

    /** Returns whether the SQLSTATE says that the session has ended; 55000 does on a server before 0.3.0. */
    static boolean isEnd(String sqlstate) {
        return "LF003".equals(sqlstate) || "55000".equals(sqlstate);
    }

    /** Returns whether the connection is lost: by no error of the server, or by one that ends the connection. */
    static boolean isBroken(SQLException error) {
        return is(error, "null|08.*|57P.*");
    }

    /** Returns whether a call may succeed when it is repeated. 53: the server lacks something. */
    static boolean passes(SQLException error) {
        return isBroken(error) || is(error, "25006|55P03|57014|40001|40P01|53.*");
    }

    /** Returns whether an error ends a call for which somebody waits. 55000: the session drains, say. */
    static boolean isFinal(SQLException error) {
        return !(error instanceof Lost) && !passes(error) && !is(error, "55000");
    }

    /** Returns whether an error stays by its nature: no such group or right, or a value that is refused. */
    static boolean isLasting(SQLException error) {
        return is(error, "(0A|22|3F|42).*");
    }

    /** Returns whether nothing is left to give back: the session, the membership, the grant or the object is gone. */
    static boolean isSettled(SQLException error) {
        return error instanceof Lost || is(error, "LF003|55000|LF001|42704");
    }

    private static boolean is(SQLException error, String states) {
        return String.valueOf(error.getSQLState()).matches(states);
    }

    /** Returns the text of an error without what no server stores: NUL, and half a surrogate pair. */
    static String textOf(Object error) {
        String text;
        try {
            text = String.valueOf(error);
        } catch (Throwable unreadable) { // a getMessage() that throws
            text = error.getClass().getName();
        }
        return text.replaceAll("\\x00|\\p{Cs}", "\uFFFD");
    }
}
