package eskit.lease;

import java.util.Objects;
import java.util.function.DoubleSupplier;

/**
 * The protocol of the keeper's connection, without a connection: events with their times in, actions out. The page
 * clients/PROTOCOL.md says it in words, and clients/vectors has cases. Times are milliseconds of a monotonic clock.
 */
final class Core {
    static final double NEVER = Double.NEGATIVE_INFINITY, ALWAYS = Double.POSITIVE_INFINITY;
    private static final double MIN_CONNECT_PAUSE = 100, MAX_CONNECT_PAUSE = 1_000, ERROR_PAUSE = 1_000;
    private static final double BEAT = 1_000; // between heartbeats where waits are refused
    private static final double SHORTEST_WAIT = 100; // a shorter one would be a poll
    private static final double FIRST_REOPEN = 1_000, LONGEST_REOPEN = 60_000;

    /** Does what the core decides. An action must not call the core back before it returns. */
    interface Actions {
        void connect();

        void disconnect();

        void call(Call call);

        void cancel();

        void ask();

        void warn(String why);
    }

    enum Kind {
        OPEN,
        WAIT,
        BEAT
    }

    /** A call of the keeper's connection. An `OPEN` heeds `takeover`, a `WAIT` the last two. */
    record Call(Kind kind, double sent, String session, boolean takeover, long timeoutMs, long revision) {}

    /** What a heartbeat, a wait or session_open answers. */
    record Answer(boolean alive, double trustMs, long revision, String reason, String session) {}

    private final double ttl; // ms
    private final boolean takeover;
    private final boolean watches; // a heartbeat names the table to watch, and the first begins it
    private final DoubleSupplier chance;
    private final Actions actions;

    String session; // is only read from outside, as `trustedUntil` is
    double trustedUntil = NEVER;
    private long revision;
    private double heard = NEVER; // when the newest call that was answered was made
    private boolean connected, draining, closed, hadSession;
    private boolean handedOut; // scopes may be trusting
    private boolean asksFirst; // a heartbeat must tell whether the session still lives
    private Call call; // the one under way
    private int attempts; // to connect, since the last answer
    private double nextConnect = NEVER, nextCall = NEVER, noWaitBefore, longestWait = ALWAYS; // the first tick connects
    private double openedAt, reopenPause = FIRST_REOPEN;

    Core(double ttlMs, boolean takeover, boolean watches, DoubleSupplier chance, Actions actions) {
        this.ttl = ttlMs;
        this.takeover = takeover;
        this.watches = watches;
        this.chance = chance;
        this.actions = actions;
    }

    State state(double now) {
        if (closed) return State.CLOSED;
        if (session == null) return hadSession ? State.LOST : State.STARTING;
        if (now >= trustedUntil) return State.DOUBTING;
        return draining ? State.DRAINING : State.TRUSTED;
    }

    /** Returns when the next `tick` is needed; ALWAYS if there is no such time. */
    double deadline() {
        if (closed) return ALWAYS;
        double next = call != null ? call.sent + ttl / 2 : connected ? nextCall : nextConnect;
        return handedOut ? Math.min(trustedUntil, next) : next;
    }

    void connected(double now) {
        connected = true;
        nextConnect = longestWait = ALWAYS;
        noWaitBefore = NEVER;
        asksFirst = session != null;
        tick(now);
    }

    /** The connection is lost, or could not be made. */
    void disconnected(double now) {
        loseConnection(now);
        tick(now);
    }

    /** The answer of the call that is under way. */
    void answered(double now, Answer answer) {
        Call answered = call;
        call = null;
        attempts = 0;
        asksFirst = false;
        if (!answer.alive && isCurrent(answered)) end(now, now < trustedUntil);
        else if (isCurrent(answered)) lives(now, answered, answer);
        tick(now);
    }

    private void lives(double now, Call answered, Answer answer) {
        boolean opens = answered.kind == Kind.OPEN;
        if (opens) {
            session = answer.session;
            revision = answer.revision;
            openedAt = now;
            hadSession = true;
            asksFirst = watches;
        }
        if (answer.reason.equals("wait_limit")) noWaitBefore = now + ttl / 3;
        boolean grew = answer.revision > revision;
        revision = Math.max(revision, answer.revision);
        believe(now, answered.sent, answer.trustMs, grew);
        if (grew || opens) return;
        if (now < noWaitBefore)
            nextCall = answered.sent + Math.min(BEAT, ttl / 3) * (0.75 + 0.25 * chance.getAsDouble());
        else if (answered.kind == Kind.WAIT && now < answered.sent + SHORTEST_WAIT)
            nextCall = answered.sent + SHORTEST_WAIT;
    }

    /** The call that is under way raised an error of the server, on a connection that is still good. */
    void failed(double now, String sqlstate) {
        Call failed = call;
        call = null;
        if (isCurrent(failed)) {
            if (LeaseException.isEnd(sqlstate) && session != null) {
                end(now, now < trustedUntil);
            } else if (sqlstate.equals("57014") && failed.kind == Kind.WAIT) { // cut short, by statement_timeout
                attempts = 0;
                longestWait = (now - failed.sent) / 2;
            } else {
                nextCall = now + Math.min(ERROR_PAUSE, ttl / 6);
                actions.warn(sqlstate);
            }
        }
        tick(now);
    }

    /** An answer of another connection, to a call of the present session that was made at `sent`. */
    void heard(double now, double sent, boolean alive, double trustMs) {
        if (session == null) return;
        if (alive) believe(now, sent, trustMs, false);
        else end(now, now < trustedUntil);
        tick(now);
    }

    /** The keeper closes the session itself, and opens another at once. */
    void replaced(double now) {
        end(now, false);
        tick(now);
    }

    /** Time has passed. */
    void tick(double now) {
        if (now >= trustedUntil) cancel();
        if (call != null && now >= call.sent + ttl / 2) {
            loseConnection(now);
            actions.disconnect();
        }
        if (!closed && call == null && now >= (connected ? nextCall : nextConnect)) goOn(now);
    }

    void drain() {
        draining = true;
        if (session == null) close();
    }

    /** The session was closed, or shall end by itself. */
    void close() {
        cancel();
        if (connected) actions.disconnect();
        closed = true;
        connected = false;
        call = null;
        session = null;
        trustedUntil = NEVER;
    }

    /** Makes the next connection or call. */
    private void goOn(double now) {
        if (!connected) {
            nextConnect = ALWAYS;
            actions.connect();
            return;
        }
        if (longestWait < SHORTEST_WAIT) {
            noWaitBefore = now + ttl / 3;
            longestWait = ALWAYS;
        }
        Kind kind = session == null ? Kind.OPEN : asksFirst || now < noWaitBefore ? Kind.BEAT : Kind.WAIT;
        double wait = Math.min(ttl / (now < trustedUntil ? 3 : 10), longestWait);
        call = new Call(kind, now, session, takeover && !hadSession, (long) wait, revision);
        actions.call(call);
    }

    /** Counts the trust from before the call. All scopes ask when it is back, or if there is news. */
    private void believe(double now, double sent, double trustMs, boolean news) {
        if (sent >= heard) {
            heard = sent;
            trustedUntil = sent + trustMs;
        }
        boolean isBack = !handedOut && now < trustedUntil;
        handedOut |= isBack;
        if (isBack || news) actions.ask();
    }

    /**
     * The session has ended. While it was trusted, only another process can have ended it, which may have the same
     * name: two such processes must not end each other for ever.
     */
    private void end(double now, boolean isTaken) {
        cancel();
        session = null;
        trustedUntil = NEVER;
        nextCall = now;
        if (draining) {
            close();
        } else if (isTaken) {
            if (now >= openedAt + LONGEST_REOPEN) reopenPause = FIRST_REOPEN;
            nextCall = now + reopenPause * (0.5 + 0.5 * chance.getAsDouble());
            reopenPause = Math.min(2 * reopenPause, LONGEST_REOPEN);
            actions.warn("taken");
        }
    }

    private void cancel() {
        if (handedOut) actions.cancel();
        handedOut = false;
    }

    /** Returns whether a call is of the present session: another one is known to have ended meanwhile. */
    private boolean isCurrent(Call other) {
        return Objects.equals(other.session, session);
    }

    /** The first new try is at once. Later ones come after a pause that doubles. */
    private void loseConnection(double now) {
        double pause = Math.min(MIN_CONNECT_PAUSE * Math.pow(2, attempts - 1), Math.min(MAX_CONNECT_PAUSE, ttl / 6));
        nextConnect = now + (attempts == 0 ? 0 : pause * (0.5 + 0.5 * chance.getAsDouble()));
        connected = false;
        call = null;
        attempts = Math.min(attempts + 1, 16);
    }
}
