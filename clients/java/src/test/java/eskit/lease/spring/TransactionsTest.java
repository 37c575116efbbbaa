package eskit.lease.spring;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import eskit.lease.Lead;
import eskit.lease.LeaseException.Refused;
import eskit.lease.Leases;
import eskit.lease.Running;
import java.sql.Connection;
import java.util.UUID;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;
import org.springframework.dao.DataAccessException;
import org.springframework.jdbc.core.ConnectionCallback;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.AbstractDataSource;
import org.springframework.jdbc.datasource.DataSourceTransactionManager;
import org.springframework.jdbc.datasource.DataSourceUtils;
import org.springframework.transaction.support.TransactionTemplate;

/** {@code guard} and {@code commit} in transactions that Spring begins and ends. */
@EnabledIfEnvironmentVariable(named = "DATABASE_URL", matches = ".+")
@Timeout(60)
class TransactionsTest {
    private static final String URL = System.getenv("DATABASE_URL");
    private final String name = "java-spring-" + UUID.randomUUID();
    private final AbstractDataSource source = new AbstractDataSource() {
        @Override
        public Connection getConnection() throws java.sql.SQLException {
            return Leases.connect(URL);
        }

        @Override
        public Connection getConnection(String user, String password) {
            throw new UnsupportedOperationException();
        }
    };
    private final JdbcTemplate jdbc = new JdbcTemplate(source);
    private final TransactionTemplate transactions = new TransactionTemplate(new DataSourceTransactionManager(source));
    private Leases leases;

    @BeforeEach
    void open() throws Exception {
        leases = Leases.builder(URL).build();
        jdbc.execute("CREATE TABLE java_spring_writes (name text)");
    }

    @AfterEach
    void close() {
        jdbc.execute("DROP TABLE java_spring_writes");
        leases.close();
    }

    private void guard(Lead lead) {
        jdbc.execute((ConnectionCallback<Void>) tx -> {
            lead.guard(tx);
            return null;
        });
    }

    private void write(Lead lead) {
        transactions.executeWithoutResult(status -> {
            jdbc.update("INSERT INTO java_spring_writes VALUES (?)", name);
            guard(lead);
        });
    }

    private long writes() {
        return jdbc.queryForObject("SELECT count(*) FROM java_spring_writes WHERE name = ?", Long.class, name);
    }

    @Test
    void guardsATransaction() throws Exception {
        try (Lead lead = leases.lead(name)) {
            write(lead);
            assertEquals(1, writes());
            assertThrows(IllegalStateException.class, () -> guard(lead)); // in no transaction: autocommit
            jdbc.queryForList("SELECT eskit_lease.lease_force_release(?, ?, 'test')", name, lead.fence());
            var refused = assertThrows(DataAccessException.class, () -> write(lead));
            assertTrue(refused.getCause() instanceof eskit.lease.LeaseException, refused.toString());
            assertEquals(1, writes());
        }
    }

    @Test
    void commitsAPosition() throws Exception {
        jdbc.queryForList("SELECT eskit_lease.group_create(?, 1)", name);
        BlockingQueue<Object> seen = new LinkedBlockingQueue<>();
        try (Running member = leases.join(name, partition -> {
            seen.add(transactions.execute(status -> {
                Connection tx = DataSourceUtils.getConnection(source);
                try {
                    long from = partition.position(tx);
                    return partition.commit(tx, 5, from) ? from : -1;
                } catch (java.sql.SQLException error) {
                    throw new IllegalStateException(error);
                } finally {
                    DataSourceUtils.releaseConnection(tx, source);
                }
            }));
            Connection alone = DataSourceUtils.getConnection(source);
            seen.add(assertThrows(IllegalStateException.class, () -> partition.commit(alone, 9, 5)));
            DataSourceUtils.releaseConnection(alone, source);
            seen.add(assertThrows(
                    Refused.class, () -> partition.transaction(source, tx -> partition.commit(tx, 9, 7))));
            partition.news();
        })) {
            assertEquals(0L, seen.poll(10, TimeUnit.SECONDS));
            assertInstanceOf(IllegalStateException.class, seen.poll(10, TimeUnit.SECONDS));
            assertInstanceOf(Refused.class, seen.poll(10, TimeUnit.SECONDS));
        }
        jdbc.queryForList("SELECT eskit_lease.group_drop(?)", name);
    }
}
