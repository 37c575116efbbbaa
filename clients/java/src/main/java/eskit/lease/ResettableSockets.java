package eskit.lease;

import java.io.IOException;
import java.net.InetAddress;
import java.net.Socket;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.util.Collections;
import java.util.Map;
import java.util.Properties;
import java.util.UUID;
import java.util.WeakHashMap;
import java.util.concurrent.ConcurrentHashMap;
import javax.net.SocketFactory;

/**
 * Makes sockets that can be reset, for connections whose call may be given up. A reset discards what was sent and not
 * delivered; after a mere close the kernel would go on sending it, and the call could arrive when nothing wants it any
 * more. Not for your code: it is public because the driver makes it, by its name.
 */
public final class ResettableSockets extends SocketFactory {
    private static final Map<String, Socket> CONNECTING = new ConcurrentHashMap<>();
    private static final Map<Connection, Socket> CONNECTED = Collections.synchronizedMap(new WeakHashMap<>());

    private final String key;

    /** @param key names the connection that is being made */
    public ResettableSockets(String key) {
        this.key = key;
    }

    static Connection connect(String url, Properties properties) throws SQLException {
        String key = UUID.randomUUID().toString();
        properties.setProperty("socketFactory", ResettableSockets.class.getName());
        properties.setProperty("socketFactoryArg", key);
        try {
            Connection made = DriverManager.getConnection(url, properties);
            CONNECTED.put(made, CONNECTING.get(key));
            return made;
        } finally {
            CONNECTING.remove(key);
        }
    }

    /** Resets the connection, if it was made here. */
    static void reset(Connection connection) {
        Socket socket = CONNECTED.get(connection);
        if (socket == null) return;
        try (socket) {
            socket.setSoLinger(true, 0);
        } catch (IOException ignored) { // it is closed already
        }
    }

    @Override
    public Socket createSocket() {
        Socket socket = new Socket();
        CONNECTING.put(key, socket);
        return socket;
    }

    @Override
    public Socket createSocket(String host, int port) {
        throw new UnsupportedOperationException();
    }

    @Override
    public Socket createSocket(String host, int port, InetAddress localHost, int localPort) {
        throw new UnsupportedOperationException();
    }

    @Override
    public Socket createSocket(InetAddress host, int port) {
        throw new UnsupportedOperationException();
    }

    @Override
    public Socket createSocket(InetAddress host, int port, InetAddress localHost, int localPort) {
        throw new UnsupportedOperationException();
    }
}
