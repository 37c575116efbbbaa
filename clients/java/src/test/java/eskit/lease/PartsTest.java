package eskit.lease;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertTrue;

import eskit.lease.LeaseException.Lost;
import eskit.lease.LeaseException.Refused;
import java.sql.SQLException;
import java.util.Properties;
import org.junit.jupiter.api.Test;

/** The parts that need no server. */
class PartsTest {
    private static String url(String url, Properties properties) {
        return Leases.jdbcUrl(url, properties);
    }

    @Test
    void urlsBecomeTheDrivers() {
        Properties user = new Properties();
        assertEquals(
                "jdbc:postgresql://h:1,i:2/db?sslmode=require",
                url("postgresql://me:p%40ss+%25@h:1,i:2/db?sslmode=require", user));
        assertEquals("me", user.get("user"));
        assertEquals("p@ss+%", user.get("password"));
        assertEquals("jdbc:postgresql://h/db", url("jdbc:postgresql://u:p@h/db", user));
        assertEquals("u", user.get("user"));
        Properties none = new Properties();
        assertEquals("jdbc:postgresql://h/db?user=a@b", url("postgres://h/db?user=a@b", none));
        assertEquals("jdbc:postgresql:///db", url("postgresql:///db", none));
        assertTrue(none.isEmpty());
    }

    @Test
    void errorsAreTold() {
        assertInstanceOf(Lost.class, LeaseException.of(new SQLException("", "LF003")));
        assertInstanceOf(Lost.class, LeaseException.of(new SQLException("", "55000")));
        for (String state : new String[] {"LF001", "55P03", "40001"}) {
            SQLException refused = LeaseException.of(new SQLException("", state));
            assertInstanceOf(Refused.class, refused);
            assertEquals(state, refused.getSQLState());
        }
        SQLException own = new SQLException("", "23505");
        assertSame(own, LeaseException.of(own));
        assertTrue(LeaseException.isBroken(new SQLException("no answer")));
        assertTrue(LeaseException.isBroken(new SQLException("", "57P01")));
        assertTrue(LeaseException.isBroken(new SQLException("", "08006")));
        assertFalse(LeaseException.isBroken(new SQLException("", "57014")));
    }
}
