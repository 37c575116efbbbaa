package eskit.lease;

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

        void open(boolean takeover);

        void await(long timeoutMs, long revision);

        void beat();

        void cancel();

        void ask();

        void warn(String why);
    }

    /** What a heartbeat, a wait or session_open answers. */
    record Answer(boolean alive, double trustMs, long revision, String reason, String session) {}

    private record Call(double sent, String session, boolean waits) {}

    private final double ttl; // ms
    private final boolean takeover,
            watches; // with `watches` a heartbeat names the table to watch, and the first begins it
    private final DoubleSupplier chance;
    private final Actions actions;

    private String session;
    private long revision;
    private double trustedUntil = NEVER;
    private double heard = NEVER; // when the newest call that was answered was made
    private boolean started, connected, draining, closed, hadSession;
    private boolean handedOut; // scopes may be trusting
    private boolean asksFirst; // a heartbeat must tell whether the session still lives
    private Call call; // the one under way
    private int attempts; // to connect, since the last answer
    private double nextConnect = ALWAYS, nextCall, noWaitBefore, longestWait = ALWAYS;
    private double openedAt, reopenPause = FIRST_REOPEN;

    Core(double ttlMs, boolean takeover, boolean watches, DoubleSupplier chance, Actions actions) {
        this.ttl = ttlMs;
        this.takeover = takeover;
        this.watches = watches;
        this.chance = chance;
        this.actions = actions;
    }

    String session() {
        return session;
    }

    double trustedUntil() {
        return trustedUntil;
    }

    State state(double now) {
        if (closed) return State.CLOSED;
        if (session == null) return hadSession ? State.LOST : State.STARTING;
        if (now >= trustedUntil) return State.DOUBTING;
        return draining ? State.DRAINING : State.TRUSTED;
    }

    /** Returns when the next `tick` is needed; ALWAYS if there is no such time. */
    double deadline() {
        if (closed || !started) return ALWAYS;
        double next = call != null ? call.sent + ttl / 2 : connected ? nextCall : nextConnect;
        return handedOut ? Math.min(trustedUntil, next) : next;
    }

    void start() {
        started = true;
        actions.connect();
    }

    void connected(double now) {
        connected = true;
        nextConnect = longestWait = ALWAYS;
        noWaitBefore = 0;
        asksFirst = session != null;
        goOn(now);
    }

    /** The connection is lost, or could not be made. */
    void disconnected(double now) {
        loseConnection(now);
        tick(now);
    }

    /** The answer of the call that is under way. */
    void answered(double now, Answer answer) {
        Call answered = endCall();
        attempts = 0;
        asksFirst = false;
        if (!isCurrent(answered)) {
            tick(now); // of a session that is known to have ended meanwhile
            return;
        }
        if (!answer.alive) ended(now);
        else if (session == null) opened(now, answered.sent, answer);
        else lives(now, answered, answer);
        tick(now);
    }

    private void lives(double now, Call answered, Answer answer) {
        if (answer.reason.equals("wait_limit")) noWaitBefore = now + ttl / 3;
        boolean grew = answer.revision > revision;
        revision = Math.max(revision, answer.revision);
        boolean back = believe(now, answered.sent, answer.trustMs);
        if (back || grew) actions.ask();
        if (grew) return;
        if (now < noWaitBefore)
            nextCall = answered.sent + Math.min(BEAT, ttl / 3) * (0.75 + 0.25 * chance.getAsDouble());
        else if (answered.waits && now < answered.sent + SHORTEST_WAIT) nextCall = answered.sent + SHORTEST_WAIT;
    }

    /** The call that is under way raised an error of the server, on a connection that is still good. */
    void failed(double now, String sqlstate) {
        Call failed = endCall();
        if (isCurrent(failed)) {
            if (LeaseException.isEnd(sqlstate) && session != null) {
                ended(now);
            } else if (sqlstate.equals("57014") && failed.waits) { // cut short, by statement_timeout
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
        if (!alive) ended(now);
        else if (believe(now, sent, trustMs)) actions.ask();
        tick(now);
    }

    /** The keeper closes the session itself. */
    void giveUp(double now) {
        ended(now, false);
        tick(now);
    }

    /** Time has passed. */
    void tick(double now) {
        if (handedOut && now >= trustedUntil) {
            handedOut = false;
            actions.cancel();
        }
        if (call != null && now >= call.sent + ttl / 2) {
            loseConnection(now);
            actions.disconnect();
        }
        goOn(now);
    }

    void drain() {
        draining = true;
        if (session == null) close();
    }

    /** The session was closed, or shall end by itself. */
    void close() {
        boolean cancels = handedOut, disconnects = connected;
        closed = true;
        handedOut = connected = false;
        call = null;
        session = null;
        trustedUntil = NEVER;
        if (cancels) actions.cancel();
        if (disconnects) actions.disconnect();
    }

    /** Makes the next connection or call, if its time has come. */
    private void goOn(double now) {
        if (closed || call != null || now < (connected ? nextCall : nextConnect)) return;
        if (!connected) {
            nextConnect = ALWAYS;
            actions.connect();
        } else if (session == null) {
            call = new Call(now, null, false);
            actions.open(takeover && !hadSession);
        } else {
            if (longestWait < SHORTEST_WAIT) {
                noWaitBefore = now + ttl / 3;
                longestWait = ALWAYS;
            }
            boolean waits = !asksFirst && now >= noWaitBefore;
            call = new Call(now, session, waits);
            if (waits) actions.await((long) Math.min(ttl / (now < trustedUntil ? 3 : 10), longestWait), revision);
            else actions.beat();
        }
    }

    private void opened(double now, double sent, Answer answer) {
        session = answer.session;
        revision = answer.revision;
        hadSession = true;
        openedAt = now;
        asksFirst = watches;
        if (believe(now, sent, answer.trustMs)) actions.ask();
    }

    /** Counts the trust from before the call. Returns whether trust is back, so that all scopes must ask. */
    private boolean believe(double now, double sent, double trustMs) {
        if (sent >= heard) {
            heard = sent;
            trustedUntil = sent + trustMs;
        }
        boolean back = !handedOut && now < trustedUntil;
        handedOut |= back;
        return back;
    }

    /**
     * The session has ended. While it was trusted, only another process can have ended it, which may have the same
     * name: two such processes must not end each other for ever.
     */
    private void ended(double now) {
        ended(now, now < trustedUntil);
    }

    private void ended(double now, boolean taken) {
        if (handedOut) actions.cancel();
        session = null;
        handedOut = asksFirst = false;
        trustedUntil = NEVER;
        nextCall = now;
        if (draining) {
            close();
        } else if (taken) {
            if (now >= openedAt + LONGEST_REOPEN) reopenPause = FIRST_REOPEN;
            nextCall = now + reopenPause * (0.5 + 0.5 * chance.getAsDouble());
            reopenPause = Math.min(2 * reopenPause, LONGEST_REOPEN);
            actions.warn("taken");
        }
    }

    private boolean isCurrent(Call other) {
        return java.util.Objects.equals(other.session, session);
    }

    private Call endCall() {
        if (call == null) throw new IllegalStateException("no call is under way");
        Call ended = call;
        call = null;
        return ended;
    }

    /** The first new try is at once. Later ones come after a pause that doubles. */
    private void loseConnection(double now) {
        double pause =
                Math.min(Math.min(MIN_CONNECT_PAUSE * (1 << Math.max(attempts - 1, 0)), MAX_CONNECT_PAUSE), ttl / 6);
        nextConnect = now + (attempts == 0 ? 0 : pause * (0.5 + 0.5 * chance.getAsDouble()));
        connected = false;
        call = null;
        attempts = Math.min(attempts + 1, 16);
    }
}
