package eskit.lease;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestFactory;

/** The cases of the vectors. */
class CoreTest {
    /** Records the actions as the vectors write them. */
    private static final class Recorder implements Core.Actions {
        private JsonArray actions = new JsonArray();

        private void with(String kind, Object... pairs) {
            JsonObject values = new JsonObject();
            for (int i = 0; i < pairs.length; i += 2) {
                String key = (String) pairs[i];
                if (pairs[i + 1] instanceof Number number) values.addProperty(key, number);
                else if (pairs[i + 1] instanceof Boolean flag) values.addProperty(key, flag);
                else values.addProperty(key, (String) pairs[i + 1]);
            }
            JsonObject action = new JsonObject();
            action.add(kind, values);
            actions.add(action);
        }

        @Override
        public void connect() {
            actions.add("connect");
        }

        @Override
        public void disconnect() {
            actions.add("disconnect");
        }

        @Override
        public void call(Core.Call call) {
            switch (call.kind()) {
                case OPEN -> with("open", "takeover", call.takeover());
                case WAIT -> with("wait", "timeout_ms", call.timeoutMs(), "revision", call.revision());
                case BEAT -> actions.add("beat");
            }
        }

        @Override
        public void cancel() {
            actions.add("cancel");
        }

        @Override
        public void ask() {
            actions.add("ask");
        }

        @Override
        public void warn(String why) {
            with("warn", "why", why);
        }
    }

    @TestFactory
    Stream<DynamicTest> vectors() throws IOException {
        JsonElement cases =
                JsonParser.parseString(Files.readString(Path.of(System.getProperty("vectors"), "keeper.json")));
        return StreamSupport.stream(cases.getAsJsonArray().spliterator(), false)
                .map(JsonElement::getAsJsonObject)
                .map(test -> DynamicTest.dynamicTest(test.get("case").getAsString(), () -> run(test)));
    }

    @Test
    void theClockMayBeNegative() {
        Recorder recorder = new Recorder();
        Core core = new Core(9_000, false, false, () -> 1, recorder);
        core.tick(-5e6);
        core.connected(-5e6);
        core.answered(-5e6, new Core.Answer(true, 9_000, 1, "", "s1"));
        assertEquals(4, recorder.actions.size());
        assertTrue(recorder.actions.get(3).toString().contains("wait"));
    }

    private static void run(JsonObject test) {
        JsonObject settings = test.getAsJsonObject("settings");
        double random = settings.has("random") ? settings.get("random").getAsDouble() : 1;
        Recorder recorder = new Recorder();
        boolean takeover = flag(settings, "takeover", false), watches = flag(settings, "watches", false);
        Core core = new Core(settings.get("ttl_ms").getAsDouble(), takeover, watches, () -> random, recorder);
        for (JsonElement element : test.getAsJsonArray("steps")) {
            JsonObject step = element.getAsJsonObject();
            double at = step.get("at").getAsDouble();
            recorder.actions = new JsonArray();
            apply(core, at, step.get("event"));
            JsonElement expected = step.has("actions") ? step.get("actions") : new JsonArray();
            assertEquals(expected.toString(), recorder.actions.toString(), step.toString());
            assertEquals(step.get("state").getAsString(), core.state(at).name().toLowerCase(), step.toString());
            if (step.has("trusted_until"))
                assertEquals(step.get("trusted_until").getAsDouble(), core.trustedUntil, 0.001, step.toString());
            if (step.has("deadline")) {
                JsonElement deadline = step.get("deadline");
                assertEquals(
                        deadline.isJsonNull() ? Core.ALWAYS : deadline.getAsDouble(),
                        core.deadline(),
                        0.001,
                        step.toString());
            }
        }
    }

    private static void apply(Core core, double at, JsonElement event) {
        String kind = event.isJsonObject()
                ? List.copyOf(event.getAsJsonObject().keySet()).get(0)
                : event.getAsString();
        JsonObject with = event.isJsonObject() ? event.getAsJsonObject().getAsJsonObject(kind) : new JsonObject();
        JsonObject answer = with.has("answer") ? with.getAsJsonObject("answer") : new JsonObject();
        boolean alive = flag(answer, "alive", true);
        double trustMs = answer.has("trust_ms") ? answer.get("trust_ms").getAsDouble() : 0;
        switch (kind) {
            case "connected" -> core.connected(at);
            case "disconnected" -> core.disconnected(at);
            case "answered" -> {
                long revision = answer.has("revision") ? answer.get("revision").getAsLong() : 0;
                core.answered(
                        at,
                        new Core.Answer(
                                alive, trustMs, revision, text(answer, "reason", ""), text(answer, "session", null)));
            }
            case "failed" -> core.failed(at, with.get("sqlstate").getAsString());
            case "heard" -> core.heard(at, with.get("sent").getAsDouble(), alive, trustMs);
            case "start", "tick" -> core.tick(at);
            case "drain" -> core.drain();
            case "close" -> core.close();
            default -> throw new IllegalArgumentException(kind);
        }
    }

    private static boolean flag(JsonObject of, String key, boolean otherwise) {
        return of.has(key) ? of.get(key).getAsBoolean() : otherwise;
    }

    private static String text(JsonObject of, String key, String otherwise) {
        return of.has(key) ? of.get(key).getAsString() : otherwise;
    }
}
