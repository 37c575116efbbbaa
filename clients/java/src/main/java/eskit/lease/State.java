package eskit.lease;

/**
 * The states of a keeper: its session is being opened, is trusted, may have ended, has ended (another opens), gets nothing
 * new, is closed. Work may begin while TRUSTED, and what has begun may finish while DRAINING.
 */
public enum State {
    STARTING,
    TRUSTED,
    DOUBTING,
    LOST,
    DRAINING,
    CLOSED
}
