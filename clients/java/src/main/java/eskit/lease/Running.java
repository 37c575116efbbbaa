package eskit.lease;

import java.lang.System.Logger.Level;
import java.util.concurrent.CompletionStage;

/** What {@link Leases#join} and {@link Leases#work} have started. It ends when it is closed, or the keeper drains. */
public final class Running implements AutoCloseable {
    private final Verb<Void> verb;

    Running(Verb<Void> verb) {
        this.verb = verb;
        verb.ended.exceptionally(error -> {
            verb.keeper.log(Level.WARNING, verb.turn + " has ended: " + error);
            return null;
        });
        verb.start();
    }

    /** {@return a stage that completes when all has ended, or fails with the error that ended it} */
    public CompletionStage<Void> ended() {
        return verb.ended.minimalCompletionStage();
    }

    /** Begins nothing new, and waits until what has begun has ended and is released. */
    @Override
    public void close() {
        verb.end();
    }
}
