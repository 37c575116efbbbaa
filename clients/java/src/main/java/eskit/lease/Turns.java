package eskit.lease;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** Lets the scopes of one name follow one another within the process: they would get the same fence. */
final class Turns {
    private final ConcurrentHashMap<String, CompletableFuture<Void>> last = new ConcurrentHashMap<>();

    /** Waits for the turn of a name, and returns how to give it on; null if it did not come by then. */
    Runnable take(String name, double until) throws InterruptedException {
        CompletableFuture<Void> mine = new CompletableFuture<>();
        CompletableFuture<Void> before = last.put(name, mine);
        Runnable giveOn = () -> {
            last.remove(name, mine);
            mine.complete(null);
        };
        if (before == null) return giveOn;
        boolean came = false;
        try {
            before.get((long) Math.max(0, Math.min(until - Line.now(), Long.MAX_VALUE)), TimeUnit.MILLISECONDS);
            came = true;
        } catch (ExecutionException | TimeoutException late) { // a turn never fails
        } finally {
            if (!came) before.thenRun(giveOn);
        }
        return came ? giveOn : null;
    }
}
