import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Types;
import java.time.Duration;
import java.time.OffsetDateTime;
import java.util.Arrays;
import java.util.Map;
import java.util.Properties;
import java.util.UUID;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.postgresql.util.PGInterval;
import org.postgresql.util.PGobject;

/**
 * Calls the functions of eskit_lease that ../test_drivers.py sends, with JDBC, as docs/drivers.md says. That test
 * describes the lines. Arguments: the URL of the database; `native`, `text` (strings, with casts), or `unspecified`
 * (strings, and stringtype=unspecified).
 */
public class Driver {
    static final Map<String, String> ELEMENTS = Map.of("text[]", "text", "bigint[]", "int8", "integer[]", "int4", "jsonb[]", "jsonb", "uuid[]", "uuid");

    static String style;
    static Connection db;

    static String mark(String type) {
        if (style.equals("text")) return "?::" + type;
        return style.equals("native") && type.equals("regrole") ? "?::regrole" : "?";
    }

    static Object passed(String type, String value) throws SQLException {
        if (ELEMENTS.containsKey(type)) {
            Stream<String> elements = Arrays.stream(value.split("\\|")).map(element -> element.equals("\\N") ? null : element);
            if (style.equals("native")) return db.createArrayOf(ELEMENTS.get(type), elements.toArray());
            return elements.map(Driver::quoted).collect(Collectors.joining(",", "{", "}"));
        }
        if (style.equals("text") && type.equals("interval")) {
            return Duration.ofSeconds(Long.parseLong(value.split(" ")[0])).toString();
        }
        if (!style.equals("native")) return value;
        switch (type) {
            case "integer": return Integer.valueOf(value);
            case "bigint": return Long.valueOf(value);
            case "boolean": return Boolean.valueOf(value);
            case "uuid": return UUID.fromString(value);
            case "interval": return new PGInterval(value);
            case "timestamp with time zone": return OffsetDateTime.parse(value);
            case "jsonb":
                PGobject json = new PGobject();
                json.setType("jsonb");
                json.setValue(value);
                return json;
            default: return value;
        }
    }

    static String quoted(String element) {
        return element == null ? "NULL" : '"' + element.replace("\\", "\\\\").replace("\"", "\\\"") + '"';
    }

    static String call(String[] words) throws SQLException {
        String marks = "";
        for (int i = 1; i < words.length; i += 2) marks += (i > 1 ? ", " : "") + mark(words[i]);
        String sql = "SELECT coalesce(jsonb_agg(x), '[]')::text FROM (SELECT * FROM eskit_lease." + words[0] + "(" + marks + ")) AS x";
        try (PreparedStatement statement = db.prepareStatement(sql)) {
            for (int i = 1; i < words.length; i += 2) {
                if (words[i + 1].equals("\\N")) statement.setNull((i + 1) / 2, Types.NULL);
                else statement.setObject((i + 1) / 2, passed(words[i], words[i + 1]));
            }
            ResultSet answer = statement.executeQuery();
            answer.next();
            return answer.getString(1);
        }
    }

    public static void main(String[] args) throws Exception {
        style = args[1];
        Properties properties = new Properties();
        properties.setProperty("password", System.getenv("PGPASSWORD")); // this driver does not read the variable
        if (style.equals("unspecified")) properties.setProperty("stringtype", "unspecified");
        db = DriverManager.getConnection("jdbc:" + args[0], properties);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            try {
                System.out.println(call(line.split("\t", -1)));
            } catch (SQLException error) {
                System.out.println("!" + error.getSQLState() + " " + error.getMessage().replace('\n', ' '));
            }
        }
    }
}
