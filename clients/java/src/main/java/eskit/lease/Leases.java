package eskit.lease;

import java.lang.management.ManagementFactory;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.time.Duration;
import java.util.Objects;
import java.util.Optional;
import java.util.Properties;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.function.Consumer;
import javax.sql.DataSource;

/** The keeper, one for each process: keeps a session alive, and has four verbs. All methods are thread-safe. */
public final class Leases implements AutoCloseable {
    private final Keeper keeper;

    private Leases(Keeper keeper) {
        this.keeper = keeper;
    }

    /**
     * Begins to set up a keeper.
     *
     * @param url postgresql:// or jdbc:postgresql://, with the password or without
     */
    public static Builder builder(String url) {
        Objects.requireNonNull(url, "url");
        Builder builder = new Builder();
        builder.connector = () -> Builder.connect(url, builder.ttl);
        return builder;
    }

    /**
     * Begins to set up a keeper that makes its connections by a function: for TLS, or for tokens that expire.
     *
     * @param connector makes a connection of its own, not of a pool, within half of the TTL
     */
    public static Builder builder(Callable<Connection> connector) {
        Builder builder = new Builder();
        builder.connector = Objects.requireNonNull(connector, "connector");
        return builder;
    }

    /**
     * Makes a connection for the work, by a URL as {@link #builder(String)} takes it.
     *
     * @param url postgresql:// or jdbc:postgresql://, with the password or without
     * @return a connection in autocommit
     */
    public static Connection connect(String url) throws SQLException {
        Properties properties = new Properties();
        return DriverManager.getConnection(jdbcUrl(url, properties), properties);
    }

    /** {@return the state of the keeper} */
    public State state() {
        return keeper.state();
    }

    /** {@return the uuid of the present session, which is to be kept private; empty if there is none} */
    public Optional<String> session() {
        return Optional.ofNullable(keeper.session());
    }

    /**
     * Waits for leadership. An interrupt gives the place in line up.
     *
     * @param name any name, or a semaphore's
     * @return the scope; close it to release the lease
     * @throws IllegalStateException if the keeper drains or is closed
     */
    public Lead lead(String name) throws SQLException, InterruptedException {
        return Lead.acquire(keeper, name, true, Core.ALWAYS).orElseThrow();
    }

    /**
     * Waits for leadership for a time. The parameters and errors of {@link #lead} apply.
     *
     * @param name any name, or a semaphore's
     * @param time how long to wait at most
     * @return the scope; empty if leadership did not come in time
     */
    public Optional<Lead> tryLead(String name, Duration time) throws SQLException, InterruptedException {
        if (time.toMillis() <= 0) return tryLead(name);
        return Lead.acquire(keeper, name, true, Line.now() + time.toMillis());
    }

    /**
     * Asks for leadership, at once or not at all.
     *
     * @param name any name, or a semaphore's
     * @return the scope; empty if another leads
     */
    public Optional<Lead> tryLead(String name) throws SQLException, InterruptedException {
        return Lead.acquire(keeper, name, false, Line.now() + keeper.ttl / 2);
    }

    /**
     * Joins a group, and runs a task, on a thread of its own, for each partition that the process owns.
     *
     * @param task what to do in a partition
     */
    public Running join(String group, Partition.Task task) {
        return new Running(new Partition.Member(keeper, group, task));
    }

    /**
     * Claims items of a queue, and handles each on a thread of its own, in a transaction that also finishes the item.
     *
     * @param concurrency how many items at once, from 1
     * @param source gives the connections of the transactions
     * @param handler what to do with an item
     */
    public Running work(String queue, int concurrency, DataSource source, Item.Handler handler) {
        if (concurrency < 1) throw new IllegalArgumentException("concurrency must be positive");
        return new Running(new Item.Worker(keeper, queue, concurrency, source, handler));
    }

    /**
     * Calls a function on this thread once for a run-once key, or tells what became of the key.
     *
     * @param key 1 to 255 bytes
     * @return the outcome
     * @throws Exception what the function throws; Lost or Refused if the attempt is over; the driver's error
     * @throws IllegalStateException if the keeper drains or is closed
     */
    public Attempt.Outcome once(String key, Attempt.Function function) throws Exception {
        return Attempt.once(keeper, key, function);
    }

    /**
     * Takes nothing new, waits for what has begun, and closes. When the time is over, the rest is cancelled.
     *
     * @param time how long to wait for what has begun
     */
    public void drain(Duration time) {
        keeper.drain(time);
    }

    /**
     * Drains when the process gets SIGTERM or SIGINT, or ends otherwise: by a shutdown hook, for which the JVM waits.
     *
     * @param time how long to wait for what has begun
     */
    public void drainOnShutdown(Duration time) {
        Runtime.getRuntime().addShutdownHook(new Thread(() -> drain(time), "eskit-lease shutdown"));
    }

    /** Cancels all scopes, waits half of the TTL at most for their work, and closes. Returns within the TTL. */
    @Override
    public void close() {
        keeper.drain(Duration.ZERO);
    }

    /** The settings of a keeper. */
    public static final class Builder {
        private Callable<Connection> connector;
        private String name, watch;
        private Duration ttl = Duration.ofSeconds(30), patience = Duration.ofSeconds(30);
        private boolean takeover, built;
        private Consumer<State> onState = state -> {};

        private Builder() {}

        /**
         * Sets the consumer's name.
         *
         * @param name by default the host, the pid and a random part
         */
        public Builder name(String name) {
            this.name = name;
            return this;
        }

        /**
         * Sets how long the session outlives its last heartbeat.
         *
         * @param ttl by default 30 s
         */
        public Builder ttl(Duration ttl) {
            this.ttl = ttl;
            return this;
        }

        /**
         * Lets the first session take over what former ones of its name have. No two processes may share the name.
         *
         * @param takeover by default false
         */
        public Builder takeover(boolean takeover) {
            this.takeover = takeover;
            return this;
        }

        /**
         * Watches a table of events, whose positions come from position_next: new events are news.
         *
         * @param table by default none
         */
        public Builder watch(String table) {
            this.watch = table;
            return this;
        }

        /**
         * Sets how long {@link #build} tries.
         *
         * @param patience by default 30 s
         */
        public Builder patience(Duration patience) {
            this.patience = patience;
            return this;
        }

        /**
         * Sets a hook that is called, on a thread of the keeper, with each new state.
         *
         * @param hook by default none
         */
        public Builder onState(Consumer<State> hook) {
            this.onState = hook;
            return this;
        }

        /**
         * Opens the keeper, and waits until its session is trusted.
         *
         * @throws SQLException the error of the last try, when the patience is over
         * @throws IllegalStateException if the builder has built a keeper, or takeover has no name
         */
        public Leases build() throws SQLException, InterruptedException {
            if (built) throw new IllegalStateException("a builder builds one keeper: two would have one name");
            if (takeover && name == null) throw new IllegalStateException("takeover needs a name");
            if (ttl.toMillis() < 100) throw new IllegalArgumentException("the TTL must be 100 ms at least");
            built = true;
            String process = ManagementFactory.getRuntimeMXBean().getName(); // pid and host
            String known = name != null
                    ? name
                    : process + "-" + UUID.randomUUID().toString().substring(0, 8);
            Keeper keeper = new Keeper(connector, known, ttl.toMillis(), takeover, watch, onState);
            keeper.open(patience);
            return new Leases(keeper);
        }

        /** Connects with limits of its own: the driver waits without end by default. */
        private static Connection connect(String url, Duration ttl) throws SQLException {
            Properties properties = new Properties();
            properties.setProperty("assumeMinServerVersion", "10"); // the driver needs no SET then
            properties.setProperty("socketFactory", ResettableSockets.class.getName());
            String seconds = String.valueOf((ttl.toMillis() + 1_999) / 2_000);
            for (String limit : new String[] {"connectTimeout", "socketTimeout", "loginTimeout"})
                properties.setProperty(limit, seconds);
            return DriverManager.getConnection(jdbcUrl(url, properties), properties);
        }
    }

    /** Returns the URL as the driver takes it, and puts user and password into the properties. */
    static String jdbcUrl(String url, Properties properties) {
        String plain = url.replaceFirst("^jdbc:", "").replaceFirst("^postgres(ql)?://", "");
        int end = plain.split("[/?]", 2)[0].lastIndexOf('@');
        if (end >= 0) {
            String[] user = plain.substring(0, end).split(":", 2);
            properties.setProperty("user", decode(user[0]));
            if (user.length > 1) properties.setProperty("password", decode(user[1]));
        }
        return "jdbc:postgresql://" + plain.substring(end + 1);
    }

    private static String decode(String text) {
        return URLDecoder.decode(text.replace("+", "%2B"), StandardCharsets.UTF_8);
    }
}
