package eskit.lease;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertTrue;

import eskit.lease.LeaseException.Lost;
import eskit.lease.LeaseException.Refused;
import java.sql.SQLException;
import java.util.Properties;
import java.util.concurrent.TimeoutException;
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
        assertTrue(Line.isBroken(new TimeoutException()));
        assertTrue(Line.isBroken(new SQLException("", "57P01")));
        assertTrue(Line.isBroken(new SQLException("", "08006")));
        assertFalse(Line.isBroken(new SQLException("", "57014")));
    }

    @Test
    void turnsFollowOneAnother() throws InterruptedException {
        Turns turns = new Turns();
        Runnable first = turns.take("a", Core.ALWAYS);
        assertNotNull(turns.take("b", Core.ALWAYS));
        assertNull(turns.take("a", Line.now() + 10));
        first.run();
        Runnable second = turns.take("a", Line.now() + 10);
        assertNotNull(second);
        second.run();
    }
}
