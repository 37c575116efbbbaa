package eskit.lease;

import static eskit.lease.Line.now;

import java.lang.System.Logger.Level;
import java.sql.SQLException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.atomic.AtomicLong;

/** What {@link Leases#join} and {@link Leases#work} have started. It ends when it is closed, or the keeper drains. */
public final class Running implements AutoCloseable {
    /** What a verb does again and again, until it is stopped. */
    abstract static class Loop {
        final Keeper keeper;
        final AtomicLong ended = new AtomicLong(); // tasks; each end calls for another round

        Loop(Keeper keeper) {
            this.keeper = keeper;
        }

        /** Returns whether there is room for a task. */
        boolean hasRoom() {
            return true;
        }

        /** Starts what there is to do, and returns when the next round is due if nothing happens before. */
        abstract double round(String session) throws SQLException;

        /** Waits for what has begun, and gives the rest back. */
        abstract void stop() throws InterruptedException;
    }

    private final Keeper keeper;
    private final String name;
    private final Loop loop;
    private final CompletableFuture<Void> ended = new CompletableFuture<>();
    private volatile boolean stopped;
    private String told = ""; // the last error, until a round succeeds: one line for many tries

    /** Starts a loop, in the turn of its name. */
    Running(String name, Loop loop) {
        this.keeper = loop.keeper;
        this.name = name;
        this.loop = loop;
        Line.daemon("eskit-lease " + name, () -> {
                    try {
                        Runnable turn = keeper.turns.take(name, Core.ALWAYS);
                        try {
                            run();
                        } finally {
                            turn.run();
                        }
                        ended.complete(null);
                    } catch (Throwable error) {
                        keeper.log(Level.WARNING, name + " has ended: " + error);
                        ended.completeExceptionally(error);
                    }
                })
                .start();
    }

    private void run() throws SQLException, InterruptedException {
        try {
            while (!isStopping()) {
                keeper.await(() -> isStopping() || keeper.state() == State.TRUSTED && loop.hasRoom(), Core.ALWAYS);
                String session = keeper.session();
                if (isStopping() || session == null) continue;
                long asks = keeper.asks(), ends = loop.ended.get();
                double due = keeper.retryAt();
                try {
                    due = Math.max(loop.round(session), now() + 10);
                    told = "";
                } catch (SQLException error) {
                    if (LeaseException.isLasting(error)) throw error;
                    if (!LeaseException.isOver(error) && !told.equals(error.getMessage()))
                        keeper.log(Level.WARNING, name + " asks again after: " + error);
                    told = String.valueOf(error.getMessage());
                }
                keeper.await(() -> isStopping() || keeper.asks() > asks || loop.ended.get() > ends, due);
            }
        } finally {
            loop.stop();
        }
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
