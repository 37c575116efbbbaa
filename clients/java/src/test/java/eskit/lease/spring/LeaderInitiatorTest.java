package eskit.lease.spring;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import eskit.lease.Leases;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.URI;
import java.time.Duration;
import java.util.UUID;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;
import org.springframework.integration.leader.Context;
import org.springframework.integration.leader.DefaultCandidate;
import org.springframework.integration.support.leader.LockRegistryLeaderInitiator;

/** Spring Integration's own election on the registry: its leader is silent, is killed, stops, or drains. */
@EnabledIfEnvironmentVariable(named = "DATABASE_URL", matches = ".+")
@Timeout(60)
class LeaderInitiatorTest {
    private static final String URL = System.getenv("DATABASE_URL");
    private static final Duration TTL = Duration.ofSeconds(2);
    private final String role = "java-leader-" + UUID.randomUUID();
    private final BlockingQueue<String> events = new LinkedBlockingQueue<>();
    private Member first, second;

    /** A keeper, a registry and an initiator, as each application has them. */
    private static final class Member implements AutoCloseable {
        final Leases leases;
        final LockRegistryLeaderInitiator initiator;

        Member(String name, String url, String role, BlockingQueue<String> events) throws Exception {
            leases = Leases.builder(url).name(name).ttl(TTL).build();
            initiator =
                    new LockRegistryLeaderInitiator(new LeaseLockRegistry(leases), new DefaultCandidate(name, role) {
                        @Override
                        public void onGranted(Context context) {
                            events.add(name + " leads");
                        }

                        @Override
                        public void onRevoked(Context context) {
                            events.add(name + " is revoked");
                        }
                    });
            initiator.start();
        }

        @Override
        public void close() {
            initiator.stop();
            leases.close();
        }
    }

    @AfterEach
    void close() {
        if (first != null) first.close();
        if (second != null) second.close();
    }

    private String next() throws InterruptedException {
        return events.poll(15, TimeUnit.SECONDS);
    }

    @Test
    void leadershipMovesWhenTheLeadersConnectionsAreSilent() throws Exception {
        try (Relay relay = new Relay()) {
            first = new Member("first", relay.url(), role, events);
            assertEquals("first leads", next());
            second = new Member("second", URL, role, events);
            Thread.sleep(1_200); // some heartbeats of the initiator
            assertTrue(first.initiator.getContext().isLeader() && events.isEmpty());
            relay.silent = true;
            assertEquals("first is revoked", next()); // before the next leader begins
            assertEquals("second leads", next());
            relay.silent = false;
            second.initiator.stop();
            assertEquals("second is revoked", next());
            assertEquals("first leads", next()); // it goes on to stand for election
        }
    }

    @Test
    void leadershipMovesWhenTheLeaderIsKilled() throws Exception {
        Process process = new ProcessBuilder(
                        "java", "-cp", System.getProperty("java.class.path"), Other.class.getName(), role)
                .redirectError(ProcessBuilder.Redirect.INHERIT)
                .start();
        try {
            assertEquals("other leads", process.inputReader().readLine());
            first = new Member("first", URL, role, events);
            Thread.sleep(500);
            assertTrue(events.isEmpty());
        } finally {
            process.destroyForcibly().waitFor();
        }
        assertEquals("first leads", next());
    }

    @Test
    void leadershipIsGivenOnByYieldAndStop() throws Exception {
        first = new Member("first", URL, role, events);
        assertEquals("first leads", next());
        second = new Member("second", URL, role, events);
        first.initiator.stop();
        assertEquals("first is revoked", next());
        assertEquals("second leads", next());
        assertFalse(first.initiator.getContext().isLeader());
    }

    /** Leads, until it is killed. */
    static final class Other {
        public static void main(String[] role) throws Exception {
            BlockingQueue<String> events = new LinkedBlockingQueue<>();
            Member member = new Member("other", URL, role[0], events);
            while (member.initiator.isRunning()) System.out.println(events.take());
        }
    }

    /** Passes bytes on to the server. While it is silent, it keeps them without a word to either end. */
    private static final class Relay implements AutoCloseable {
        private final URI server = URI.create(URL);
        private final ServerSocket socket = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
        volatile boolean silent;

        Relay() throws Exception {
            start(() -> {
                while (true) {
                    Socket here = socket.accept(), there = new Socket(server.getHost(), server.getPort());
                    start(() -> pass(here.getInputStream(), there.getOutputStream()));
                    start(() -> pass(there.getInputStream(), here.getOutputStream()));
                }
            });
        }

        String url() {
            return "postgresql://" + server.getRawUserInfo() + "@127.0.0.1:" + socket.getLocalPort() + server.getPath();
        }

        private interface Loop {
            void run() throws Exception;
        }

        private static void start(Loop loop) {
            Thread thread = new Thread(() -> {
                try {
                    loop.run();
                } catch (Exception closed) { // the other end sees it, too
                }
            });
            thread.setDaemon(true);
            thread.start();
        }

        private void pass(InputStream in, OutputStream out) throws Exception {
            byte[] bytes = new byte[8192];
            try (in;
                    out) {
                for (int n = in.read(bytes); n >= 0; n = in.read(bytes)) {
                    while (silent) Thread.sleep(10);
                    out.write(bytes, 0, n);
                }
            }
        }

        @Override
        public void close() throws Exception {
            socket.close();
        }
    }
}
