package kit;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.gson.JsonPrimitive;
import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import eskit.lease.Lead;
import eskit.lease.LeaseException.Lost;
import eskit.lease.LeaseException.Refused;
import eskit.lease.LeaseException.Unsure;
import eskit.lease.Leases;
import eskit.lease.Partition;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executor;
import java.util.concurrent.Executors;

/** The program of the conformance kit: JSON lines in, JSON lines out. It uses only what the library makes public. */
public final class Program {
    private final Executor threads = Executors.newCachedThreadPool(Program::daemon);
    private final Map<String, Runnable> stops = new ConcurrentHashMap<>();
    private volatile Leases leases;
    private volatile HikariDataSource pool;
    private volatile String consumer;
    private volatile int connections;
    private volatile JsonObject opened; // the command
    private boolean ended;

    private static Thread daemon(Runnable work) {
        Thread thread = new Thread(work);
        thread.setDaemon(true);
        return thread;
    }

    public static void main(String[] arguments) throws IOException {
        Program program = new Program();
        Thread main = Thread.currentThread();
        // The JVM would end with 143 after SIGTERM; halt ends it with 0.
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            program.end();
            Runtime.getRuntime().halt(0);
        }));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            if (line.isBlank()) continue;
            JsonObject command = JsonParser.parseString(line).getAsJsonObject();
            program.threads.execute(() -> program.obey(command));
        }
        main.setName("ends");
        System.exit(0);
    }

    private synchronized void end() {
        if (ended) return;
        ended = true;
        if (leases != null) leases.drain(Duration.ofSeconds(10));
        emit("drained", null);
    }

    private static synchronized void emit(String event, String id, Object... pairs) {
        JsonObject line = new JsonObject();
        line.addProperty("event", event);
        line.addProperty("at", System.nanoTime() / 1e9);
        if (id != null) line.addProperty("id", id);
        for (int i = 0; i < pairs.length; i += 2) {
            Object value = pairs[i + 1];
            JsonElement json = null;
            if (value instanceof JsonElement element) json = element;
            else if (value instanceof Number number) json = new JsonPrimitive(number);
            else if (value instanceof Boolean flag) json = new JsonPrimitive(flag);
            else if (value != null) json = new JsonPrimitive(value.toString());
            line.add((String) pairs[i], json);
        }
        System.out.println(line);
        System.out.flush();
    }

    private static double number(JsonObject of, String key, double otherwise) {
        return of.has(key) && !of.get(key).isJsonNull() ? of.get(key).getAsDouble() : otherwise;
    }

    private static String text(JsonObject of, String key, String otherwise) {
        return of.has(key) && !of.get(key).isJsonNull() ? of.get(key).getAsString() : otherwise;
    }

    private static void sleep(double seconds) throws InterruptedException {
        Thread.sleep((long) (seconds * 1e3));
    }

    private void obey(JsonObject command) {
        String id = text(command, "id", null);
        try {
            switch (command.get("do").getAsString()) {
                case "open" -> open(id, command);
                case "lead" -> lead(id, command);
                case "join" -> join(id, command);
                case "work" -> work(id, command);
                case "once" -> once(id, command);
                case "stop" -> stop(id);
                case "hold" -> hold(id, command);
                case "state" ->
                    emit(
                            "state",
                            id,
                            "state",
                            name(),
                            "session",
                            leases.session().orElse(null));
                case "drain" -> {
                    leases.drain(Duration.ofMillis((long) (number(command, "seconds", 10) * 1e3)));
                    emit("drained", id);
                }
                case "close" -> {
                    leases.close();
                    emit("closed", id);
                }
                case "misuse" ->
                    emit("misused", id, "case", text(command, "case", ""), "error", misuse(text(command, "case", "")));
                default -> emit("error", id, "error", "unknown command");
            }
        } catch (Exception error) {
            emit("error", id, "error", error.toString());
        }
    }

    private String name() {
        return leases.state().name().toLowerCase(Locale.ROOT);
    }

    private static Leases.Builder builder(JsonObject command) {
        Leases.Builder builder = Leases.builder(text(command, "dsn", System.getenv("DATABASE_URL")));
        String name = text(command, "name", null);
        if (name != null) builder.name(name);
        return builder.ttl(Duration.ofMillis((long) (number(command, "ttl", 30) * 1e3)))
                .takeover(command.has("takeover") && command.get("takeover").getAsBoolean());
    }

    private void open(String id, JsonObject command) throws SQLException, InterruptedException {
        String dsn = text(command, "dsn", System.getenv("DATABASE_URL"));
        opened = command;
        consumer = text(command, "name", "nameless");
        connections = (int) number(command, "pool", 4);
        pool = pool(text(command, "work", dsn), connections, number(command, "ttl", 30));
        leases = builder(command)
                .onState(state -> emit("keeper", null, "state", state.name().toLowerCase(Locale.ROOT)))
                .build();
        emit("opened", id, "session", leases.session().orElse(null));
    }

    private static HikariDataSource pool(String url, int size, double ttl) {
        java.net.URI uri = java.net.URI.create(url.replaceFirst("^jdbc:", ""));
        HikariConfig config = new HikariConfig();
        config.setJdbcUrl("jdbc:postgresql://" + uri.getRawAuthority().replaceFirst("^.*@", "") + uri.getRawPath()
                + (uri.getRawQuery() == null ? "" : "?" + uri.getRawQuery()));
        if (uri.getUserInfo() != null) {
            String[] user = uri.getUserInfo().split(":", 2);
            config.setUsername(user[0]);
            if (user.length > 1) config.setPassword(user[1]);
        }
        config.setMaximumPoolSize(size);
        config.setMinimumIdle(0);
        config.setInitializationFailTimeout(-1);
        config.addDataSourceProperty("prepareThreshold", "0");
        config.addDataSourceProperty("socketTimeout", String.valueOf((long) Math.ceil(ttl)));
        config.addDataSourceProperty("connectTimeout", String.valueOf((long) Math.ceil(ttl)));
        return new HikariDataSource(config);
    }

    private void lead(String id, JsonObject command) {
        Thread leader = Thread.currentThread();
        CountDownLatch done = new CountDownLatch(1);
        boolean[] stopping = {false};
        stops.put(id, () -> {
            stopping[0] = true;
            leader.interrupt();
            await(done);
        });
        try {
            while (!stopping[0]) leadOnce(id, command);
        } catch (InterruptedException | IllegalStateException stopped) { // told to stop, or drained
        } catch (SQLException error) {
            emit("error", id, "error", error.toString());
        } finally {
            done.countDown();
        }
    }

    private void leadOnce(String id, JsonObject command) throws SQLException, InterruptedException {
        String name = text(command, "name", null);
        double every = number(command, "every", 0.01);
        Lead lead = leases.lead(name);
        try (lead) {
            emit("granted", id, "fence", lead.fence());
            lead.onCancelled(() -> emit("cancelled", id, "fence", lead.fence()));
            lead.run(() -> {
                while (!lead.isStopping()) {
                    String how = write(id, lead);
                    emit(how, id, "fence", lead.fence());
                    if (how.equals("lost") || how.equals("unsure")) break;
                    sleep(every);
                }
                return null;
            });
        } catch (Lost ended) { // interrupted: the next one follows
        } catch (SQLException | InterruptedException | RuntimeException error) {
            throw error;
        } catch (Exception impossible) {
            throw new IllegalArgumentException(impossible);
        } finally {
            emit("ended", id, "fence", lead.fence());
        }
    }

    private String write(String id, Lead lead) {
        return outcome(
                "wrote",
                () -> lead.transaction(pool, tx -> {
                    emit("begin", id, "fence", lead.fence());
                    return update(
                            tx,
                            "INSERT INTO kit_writes (consumer, name, fence) VALUES (?, ?, ?)",
                            consumer,
                            lead.name(),
                            lead.fence());
                }));
    }

    private interface Step {
        void run() throws Exception;
    }

    private static String outcome(String good, Step step) {
        try {
            step.run();
            return good;
        } catch (Lost error) {
            return "lost";
        } catch (Refused error) {
            return "refused";
        } catch (Unsure error) {
            return "unsure";
        } catch (Exception error) {
            return "error";
        }
    }

    private static int update(Connection connection, String sql, Object... values) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            for (int i = 0; i < values.length; i++) statement.setObject(i + 1, values[i]);
            return statement.executeUpdate();
        }
    }

    private void join(String id, JsonObject command) {
        double every = number(command, "every", 0.01);
        var running = leases.join(text(command, "group", null), partition -> {
            tell("started", id, partition);
            partition.onCancelled(() -> tell("cancelled", id, partition));
            try {
                while (!partition.isStopping()) {
                    apply(id, partition);
                    sleep(every);
                }
            } finally {
                tell("ended", id, partition);
            }
        });
        stops.put(id, running::close);
    }

    private static void tell(String event, String id, Partition partition) {
        emit(event, id, "partition", partition.partition(), "fence", partition.fence());
    }

    private void apply(String id, Partition partition) throws Exception {
        tell("begin", id, partition);
        try {
            boolean applied = partition.transaction(pool, tx -> step(tx, partition));
            if (applied) tell("applied", id, partition);
        } catch (Lost | Refused | Unsure ended) {
            tell(ended.getClass().getSimpleName().toLowerCase(Locale.ROOT), id, partition);
            throw ended;
        } catch (SQLException error) {
            if (error.getCause() instanceof InterruptedException) throw new InterruptedException();
            tell("error", id, partition);
        }
    }

    private boolean step(Connection tx, Partition partition) throws SQLException {
        long from = partition.position(tx);
        List<Long> events = new ArrayList<>();
        try (PreparedStatement statement = tx.prepareStatement(
                "SELECT position FROM kit_events WHERE part = ? AND position > ? ORDER BY position LIMIT 5")) {
            statement.setInt(1, partition.partition());
            statement.setLong(2, from);
            try (ResultSet rows = statement.executeQuery()) {
                while (rows.next()) events.add(rows.getLong(1));
            }
        }
        if (events.isEmpty() || !partition.commit(tx, events.get(events.size() - 1), from)) return false;
        for (long event : events) {
            update(
                    tx,
                    "INSERT INTO kit_applied (part, position, fence, consumer) VALUES (?, ?, ?, ?)",
                    partition.partition(),
                    event,
                    partition.fence(),
                    consumer);
        }
        return true;
    }

    private void work(String id, JsonObject command) {
        var running =
                leases.work(text(command, "queue", null), (int) number(command, "concurrency", 1), pool, (item, tx) -> {
                    JsonObject payload = JsonParser.parseString(item.payload()).getAsJsonObject();
                    try {
                        if (item.attempt() <= number(payload, "fail", 0))
                            throw new IllegalArgumentException("told to fail");
                        sleep(number(payload, "seconds", 0));
                        update(tx, "INSERT INTO kit_done (item, consumer) VALUES (?, ?)", item.id(), consumer);
                        emit("handled", id, "item", item.id());
                    } catch (Exception error) {
                        emit("failed", id, "item", item.id());
                        throw error;
                    }
                });
        stops.put(id, running::close);
    }

    private void once(String id, JsonObject command) {
        String key = text(command, "key", null);
        try {
            var outcome = leases.once(key, attempt -> {
                try (Connection connection = pool.getConnection()) {
                    update(connection, "INSERT INTO kit_once (key, consumer) VALUES (?, ?)", key, consumer);
                }
                sleep(number(command, "seconds", 0));
                if (command.has("fail") && command.get("fail").getAsBoolean())
                    throw new IllegalArgumentException("told to fail");
                JsonObject result = new JsonObject();
                result.addProperty("by", consumer);
                return result.toString();
            });
            JsonElement result = outcome.result() == null ? null : JsonParser.parseString(outcome.result());
            emit("once", id, "first", outcome.first(), "state", outcome.state(), "result", result);
        } catch (IllegalArgumentException told) {
            emit("once", id, "first", true, "state", "failed", "result", null);
        } catch (Exception error) {
            emit("error", id, "error", error.toString());
        }
    }

    private void stop(String id) {
        Runnable stop = stops.remove(id);
        if (stop != null) stop.run();
        emit("stopped", id);
    }

    private void hold(String id, JsonObject command) throws SQLException, InterruptedException {
        List<Connection> held = new ArrayList<>();
        try {
            while (held.size() < connections) held.add(pool.getConnection());
            emit("held", id);
            sleep(number(command, "seconds", 1));
        } finally {
            for (Connection connection : held) connection.close();
        }
        emit("free", id);
    }

    private static void await(CountDownLatch done) {
        try {
            done.await();
        } catch (InterruptedException hurry) {
            Thread.currentThread().interrupt();
        }
    }

    private String misuse(String which) {
        try {
            switch (which) {
                case "before_open" -> {} // there is no keeper that is not open
                case "after_close" -> {
                    Leases closed = other();
                    closed.close();
                    closed.lead("misuse");
                }
                case "open_twice" -> {
                    Leases.Builder builder =
                            builder(opened).name(consumer + "-misuse").takeover(false);
                    builder.build().close();
                    builder.build().close();
                }
                case "no_transaction" -> {
                    try (Lead lead = leases.lead("misuse");
                            Connection connection = pool.getConnection()) {
                        lead.guard(connection);
                    }
                }
                case "ended_scope" -> {
                    Lead lead = leases.lead("misuse");
                    lead.close();
                    lead.transaction(pool, tx -> null);
                }
                case "two_threads" -> twoThreads();
                default -> throw new IllegalArgumentException(which);
            }
            return null;
        } catch (Exception error) {
            return error.getClass().getSimpleName();
        }
    }

    private Leases other() throws SQLException, InterruptedException {
        return builder(opened).name(consumer + "-misuse").takeover(false).build();
    }

    private void twoThreads() throws Exception {
        Exception[] errors = {null, null};
        Thread[] leaders = new Thread[2];
        for (int i = 0; i < 2; i++) {
            int mine = i;
            leaders[i] = daemon(() -> {
                try (Lead lead = leases.lead("misuse-" + mine)) {
                    lead.transaction(pool, tx -> null);
                } catch (Exception error) {
                    errors[mine] = error;
                }
            });
            leaders[i].start();
        }
        for (Thread leader : leaders) leader.join();
        for (Exception error : errors) {
            if (error != null) throw error;
        }
    }
}
