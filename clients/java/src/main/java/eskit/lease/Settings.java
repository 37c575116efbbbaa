package eskit.lease;

import java.sql.Connection;
import java.time.Duration;
import java.util.concurrent.Callable;
import java.util.function.Consumer;

record Settings(
        Callable<Connection> connector,
        String name,
        Duration ttl,
        boolean takeover,
        String watch,
        Duration patience,
        Consumer<State> onState) {}
