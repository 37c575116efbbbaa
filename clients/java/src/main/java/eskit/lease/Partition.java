package eskit.lease;

import static eskit.lease.Line.now;

import java.lang.System.Logger.Level;
import java.sql.Connection;
import java.sql.SQLException;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/** A partition of a group that the process owns, under its fence. */
public final class Partition extends Fenced {
    /** What a member does in a partition. */
    @FunctionalInterface
    public interface Task {
        /**
         * Works until the scope is cancelled, which interrupts the thread. When it returns or throws earlier, the
         * partition is released, and begins anew under a new fence.
         *
         * @throws Exception is logged
         */
        void in(Partition partition) throws Exception;
    }

    private final int number;

    private Partition(Keeper keeper, String group, String session, int number, long fence) {
        super(keeper, group, session, fence);
        this.number = number;
    }

    /** {@return the number of the partition, from 0} */
    public int partition() {
        return number;
    }

    /**
     * Reads the position up to which the group has come; 0 at the beginning.
     */
    public long position(Connection transaction) throws SQLException {
        return Line.row(
                transaction,
                row -> row.getLong(1),
                "SELECT eskit_lease.cursor_position(?::text, ?::int)",
                name(),
                number);
    }

    /**
     * Checks the fence and moves the cursor in the caller's transaction. Call it before the work's writes.
     *
     * @param transaction a connection whose autocommit is off
     * @param position the last position of the batch
     * @param expected the position at which the batch began
     * @return false if the cursor is there already: apply nothing
     * @throws SQLException Lost, Refused, or the driver's error; roll back
     * @throws IllegalStateException if autocommit is on
     */
    public boolean commit(Connection transaction, long position, long expected) throws SQLException {
        String sql = "SELECT eskit_lease.cursor_commit(?::text, ?::int, ?::bigint, ?::bigint, ?::bigint)";
        return checked(
                transaction,
                c -> Line.row(c, row -> row.getBoolean(1), sql, name(), number, position, fence(), expected));
    }

    private record Share(int number, long fence, String state) {}

    /** The loop of a member: a task for each partition that is owned. */
    static final class Member extends Running.Loop {
        private static final String JOIN = "SELECT eskit_lease.group_join(?::text, ?::uuid)";
        private static final String LEAVE = "SELECT eskit_lease.group_leave(?::text, ?::uuid)";
        private static final double FIRST_PAUSE = 100, LONGEST_PAUSE = 10_000; // ms

        /** What a partition waits for after an error. */
        private record Rest(double pause, double until) {}

        private final String group;
        private final Task work;
        private final Map<Integer, Partition> tasks = new ConcurrentHashMap<>();
        private final Map<Integer, Rest> rests = new ConcurrentHashMap<>(); // is changed before the task is removed
        private boolean unanswered; // the join
        private String joined, sent; // the sessions that have joined, and that were told to

        Member(Keeper keeper, String group, Task work) {
            super(keeper);
            this.group = group;
            this.work = work;
        }

        @Override
        double round(String session) throws SQLException {
            try {
                if (!session.equals(joined)) {
                    sent = session;
                    keeper.rows(session, row -> true, JOIN, group, session);
                }
                joined = session;
                unanswered = false;
                return assign(session);
            } catch (SQLException error) {
                if (LeaseException.isOver(error)) joined = null;
                unanswered = !session.equals(joined) && Keeper.passes(error);
                throw error;
            }
        }

        /** Starts and cancels tasks. Returns when the next one may start that is not asked for. */
        private double assign(String session) throws SQLException {
            List<Share> shares = keeper.rows(
                    session,
                    row -> new Share(row.getInt(1), row.getLong(2), row.getString(3)),
                    "SELECT partition, fence, state FROM eskit_lease.group_assignment(?::text, ?::uuid)",
                    group,
                    session);
            double next = Core.ALWAYS, now = now();
            for (Partition task : tasks.values()) {
                if (!shares.contains(new Share(task.number, task.fence(), "owned"))) task.cancel();
            }
            for (Share share : shares) {
                if (tasks.containsKey(share.number)) continue;
                Partition task = new Partition(keeper, group, session, share.number, share.fence);
                double start = rests.getOrDefault(share.number, new Rest(0, now)).until;
                if (share.state.equals("revoking")) keeper.pool.execute(() -> release(task));
                else if (share.state.equals("owned") && start > now) next = Math.min(next, start);
                else if (share.state.equals("owned")) start(task);
            }
            return next;
        }

        private void start(Partition task) {
            if (!keeper.begin(task)) return;
            tasks.put(task.number, task);
            Line.daemon("eskit-lease " + group + " " + task.number, () -> run(task))
                    .start();
        }

        private void run(Partition task) {
            double began = now();
            boolean pauses = true;
            try {
                task.run(() -> {
                    work.in(task);
                    return null;
                });
            } catch (LeaseException ended) {
                pauses = false;
            } catch (Throwable error) {
                if (!task.isOver())
                    keeper.log(
                            Level.WARNING,
                            "partition " + task.number + " of " + group + " failed: " + Keeper.storable(error));
            }
            pauses &= !task.isOver() && now() - began < LONGEST_PAUSE;
            task.finish();
            release(task);
            Rest last = rests.remove(task.number);
            double pause = last == null ? FIRST_PAUSE : Math.min(2 * last.pause, LONGEST_PAUSE);
            if (pauses) rests.put(task.number, new Rest(pause, now() + pause));
            tasks.remove(task.number);
            ended.incrementAndGet();
            keeper.end(task);
        }

        private void release(Partition task) {
            String sql = "SELECT eskit_lease.group_release(?::text, ?::int, ?::bigint)";
            keeper.settle(task.session(), sql, group, task.number, task.fence());
        }

        @Override
        void stop() throws InterruptedException {
            // In a drain they end by themselves; the keeper cancels what is left when the time is over.
            if (!keeper.isStopping()) tasks.values().forEach(Scope::cancel);
            keeper.await(tasks::isEmpty, Core.ALWAYS);
            if (sent == null) return;
            try { // a join without an answer must not come after the leave
                if (unanswered) keeper.repeat(sent, row -> true, JOIN, group, sent);
            } catch (SQLException refused) { // so there is nothing to leave
            }
            keeper.settle(sent, LEAVE, group, sent);
        }
    }
}
