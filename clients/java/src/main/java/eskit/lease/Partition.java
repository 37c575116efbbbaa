package eskit.lease;

import static eskit.lease.Line.now;

import java.lang.System.Logger.Level;
import java.sql.Connection;
import java.sql.SQLException;
import java.util.List;
import java.util.Map;
import java.util.Set;
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

    private static final String JOIN = "SELECT eskit_lease.group_join(?::text, ?::uuid)";
    private static final String ASSIGNMENT =
            "SELECT partition, fence, state FROM eskit_lease.group_assignment(?::text, ?::uuid)";
    private static final String RELEASE = "SELECT eskit_lease.group_release(?::text, ?::int, ?::bigint)";
    private static final String LEAVE = "SELECT eskit_lease.group_leave(?::text, ?::uuid)";
    private static final String POSITION = "SELECT eskit_lease.cursor_position(?::text, ?::int)";
    private static final String COMMIT =
            "SELECT eskit_lease.cursor_commit(?::text, ?::int, ?::bigint, ?::bigint, ?::bigint)";
    private static final double FIRST_PAUSE = 100, LONGEST_PAUSE = 10_000; // ms

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
        return Line.row(transaction, row -> row.getLong(1), POSITION, name(), number);
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
        Object[] values = {name(), number, position, fence(), expected};
        return checked(transaction, tx -> Line.row(tx, row -> row.getBoolean(1), COMMIT, values));
    }

    private record Share(int number, long fence, String state) {
        static final Line.Row<Share> ROW = row -> new Share(row.getInt(1), row.getLong(2), row.getString(3));
    }

    /** Membership of a group: a task for each partition that is owned. */
    static final class Member extends Verb<Void> {
        private final String group;
        private final Task work;
        private final Map<Integer, Double> rests = new ConcurrentHashMap<>(); // the last one of each partition
        private String joined, sent; // the sessions that have joined, and that were told to

        Member(Keeper keeper, String group, Task work) {
            super(keeper, "group " + group);
            this.group = group;
            this.work = work;
        }

        @Override
        void run() throws SQLException, InterruptedException {
            try {
                look(this::follow, LeaseException::isLasting);
            } finally {
                // In a drain they end by themselves; the keeper cancels what is left when the time is over.
                if (!keeper.isStopping()) tasks.values().forEach(Scope::cancel);
                keeper.rest(tasks::isEmpty, Core.ALWAYS);
                if (sent != null) keeper.settle(sent, LEAVE, group, sent);
            }
        }

        /** Makes the tasks equal to what the session owns now. */
        private Void follow(String session) throws SQLException {
            Set<Object> before = Set.copyOf(tasks.keySet()); // what ends meanwhile may be listed as it was
            for (Share share : assignment(session)) {
                if (before.contains(share.number)) continue;
                Partition task = new Partition(keeper, group, session, share.number, share.fence);
                boolean isUsed = keeper.used.contains(share.fence); // its release was refused
                if (isUsed) again(keeper.retryAt());
                if (isUsed || share.state.equals("revoking")) release(task);
                else if (share.state.equals("owned")) start(share.number, task, () -> run(task));
            }
            return null;
        }

        /** Asks for the assignment, joins before that if need be, and cancels the tasks that it does not list. */
        private List<Share> assignment(String session) throws SQLException {
            sent = session;
            try {
                if (!session.equals(joined)) keeper.repeat(session, row -> true, JOIN, group, session);
                joined = session;
                List<Share> shares = keeper.repeat(session, Share.ROW, ASSIGNMENT, group, session);
                tasks.forEach((number, task) -> {
                    if (!shares.contains(new Share((int) number, task.fence(), "owned"))) task.cancel();
                });
                return shares;
            } catch (SQLException error) {
                if (LeaseException.isEnd(error.getSQLState())) joined = null; // was put out: join again
                throw error;
            }
        }

        /** Runs the work of a partition until it ends. Then gives the partition back, so that it begins anew. */
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
                String text = "partition " + task.number + " of " + group + " failed: " + LeaseException.textOf(error);
                if (!task.isOver()) keeper.log(Level.WARNING, text);
            }
            Double last = rests.remove(task.number);
            if (pauses && !task.isOver() && now() - began < LONGEST_PAUSE) {
                double pause = last == null ? FIRST_PAUSE : Math.min(2 * last, LONGEST_PAUSE);
                rests.put(task.number, pause);
                keeper.rest(() -> task.isOver() || isStopping(), now() + pause);
            }
            task.finish();
            release(task);
        }

        private void release(Partition task) {
            Object released = keeper.settle(task.session(), RELEASE, group, task.number, task.fence());
            if (released == null) keeper.used.add(task.fence());
        }
    }
}
