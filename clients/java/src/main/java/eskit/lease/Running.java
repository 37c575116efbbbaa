package eskit.lease;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;

/** What {@link Leases#join} and {@link Leases#work} have started. It ends when it is closed, or the keeper drains. */
public final class Running implements AutoCloseable {
    /** What the loop of a verb does, until it is stopped. */
    interface Loop {
        void run(Running running) throws Exception;
    }

    private final Keeper keeper;
    private final CompletableFuture<Void> ended = new CompletableFuture<>();
    private volatile boolean stopped;

    /** Starts a loop, in the turn of its name. */
    Running(Keeper keeper, String name, Loop loop) {
        this.keeper = keeper;
        Line.daemon("eskit-lease " + name, () -> {
                    try {
                        Runnable turn = keeper.turns.take(name, Core.ALWAYS);
                        try {
                            loop.run(this);
                        } finally {
                            turn.run();
                        }
                        ended.complete(null);
                    } catch (Throwable error) {
                        ended.completeExceptionally(error);
                    }
                })
                .start();
    }

    boolean isStopping() {
        return stopped || keeper.isStopping();
    }

    /** {@return a stage that completes when all has ended, or fails with the error that ended it} */
    public CompletionStage<Void> ended() {
        return ended.minimalCompletionStage();
    }

    /** Begins nothing new, and waits until what has begun has ended and is released. */
    @Override
    public void close() {
        stopped = true;
        keeper.nudge();
        ended.handle((done, error) -> done).join();
    }
}
