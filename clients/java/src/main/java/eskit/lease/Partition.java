package eskit.lease;

import java.sql.Connection;
import java.sql.SQLException;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

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

    private record Share(int number, long fence, boolean owned) {}

    /** The loop of a member: a task for each partition that is owned. */
    static final class Member implements Running.Loop {
        private static final double FIRST_PAUSE = 100, LONGEST_PAUSE = 10_000; // ms

        private final Keeper keeper;
        private final String group;
        private final Task work;
        private final Map<Integer, Partition> tasks = new HashMap<>(); // guarded by itself, as the two below
        private final Map<Integer, Double> pauses = new HashMap<>(), starts = new HashMap<>();

        Member(Keeper keeper, String group, Task work) {
            this.keeper = keeper;
            this.group = group;
            this.work = work;
        }

        @Override
        public void run(Running running) throws SQLException, InterruptedException {
            String joined = null;
            try {
                while (!running.isStopping()) {
                    keeper.await(() -> running.isStopping() || keeper.state() == State.TRUSTED, Core.ALWAYS);
                    String session = keeper.session();
                    if (running.isStopping() || session == null) continue;
                    long noted = keeper.asks();
                    double retry = Keeper.now() + Math.min(1_000, keeper.ttl / 6);
                    try {
                        if (!session.equals(joined)) join(session);
                        joined = session;
                        retry = Math.max(assign(session), Keeper.now() + 10);
                    } catch (SQLException error) {
                        boolean over = error instanceof LeaseException || LeaseException.isEnd(error.getSQLState());
                        if (over) joined = null;
                        else if (!Keeper.passes(error)) throw error;
                    }
                    int had = count();
                    keeper.await(() -> running.isStopping() || keeper.asks() > noted || count() < had, retry);
                }
            } finally {
                stop(joined);
            }
        }

        private void join(String session) throws SQLException {
            keeper.once(session, c -> Line.run(c, "SELECT eskit_lease.group_join(?::text, ?::uuid)", group, session));
        }

        /** Starts and cancels tasks. Returns when the next one may start that is not asked for. */
        private double assign(String session) throws SQLException {
            List<Share> shares = keeper.once(
                    session,
                    c -> Line.rows(
                            c,
                            row -> new Share(
                                    row.getInt(1),
                                    row.getLong(2),
                                    row.getString(3).equals("owned")),
                            "SELECT partition, fence, state FROM eskit_lease.group_assignment(?::text, ?::uuid)",
                            group,
                            session));
            double next = Core.ALWAYS, now = Keeper.now();
            synchronized (tasks) {
                for (Partition task : tasks.values()) {
                    if (!shares.contains(new Share(task.number, task.fence(), true))) task.cancel();
                }
                for (Share share : shares) {
                    double start = starts.getOrDefault(share.number, now);
                    if (!share.owned || tasks.containsKey(share.number)) continue;
                    if (start > now) next = Math.min(next, start);
                    else start(new Partition(keeper, group, session, share.number, share.fence));
                }
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
            double began = Keeper.now();
            boolean pauses = true;
            try {
                task.run(() -> {
                    work.in(task);
                    return null;
                });
            } catch (LeaseException ended) {
                pauses = false;
            } catch (Throwable error) {
                if (!task.isOver()) keeper.failed("partition " + task.number + " of " + group, error);
            }
            pauses &= !task.isOver();
            task.finish();
            release(task);
            synchronized (tasks) {
                tasks.remove(task.number);
                if (pauses && Keeper.now() - began < LONGEST_PAUSE) {
                    double pause = this.pauses.merge(
                            task.number, FIRST_PAUSE, (last, first) -> Math.min(2 * last, LONGEST_PAUSE));
                    starts.put(task.number, Keeper.now() + pause);
                } else {
                    this.pauses.remove(task.number);
                }
            }
            keeper.end(task);
        }

        private void release(Partition task) {
            String sql = "SELECT eskit_lease.group_release(?::text, ?::int, ?::bigint)";
            try {
                keeper.repeat(task.session(), c -> Line.run(c, sql, group, task.number, task.fence()));
            } catch (SQLException ended) { // nothing is left to release
            }
        }

        private int count() {
            synchronized (tasks) {
                return tasks.size();
            }
        }

        private void stop(String joined) throws InterruptedException {
            synchronized (tasks) {
                tasks.values().forEach(Scope::cancel);
            }
            keeper.await(() -> count() == 0, Core.ALWAYS);
            try {
                if (joined != null)
                    keeper.repeat(
                            joined,
                            c -> Line.run(c, "SELECT eskit_lease.group_leave(?::text, ?::uuid)", group, joined));
            } catch (SQLException ended) { // and the membership with it
            }
        }
    }
}
