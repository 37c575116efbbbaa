package eskit.lease;

/** The states of a keeper. */
public enum State {
    /** The first session is being opened. */
    STARTING,
    /** The session lives, and the last answer may still be believed: work may begin. */
    TRUSTED,
    /** The session may have ended: all work is cancelled. */
    DOUBTING,
    /** The session has ended, and another opens after a pause: all work is cancelled. */
    LOST,
    /** The session gets nothing new: what has begun may finish. */
    DRAINING,
    /** The session is closed. */
    CLOSED
}
