package eskit.lease;

import java.net.InetAddress;
import java.net.Socket;
import java.net.SocketException;
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
 * Makes sockets that are reset, for connections whose call may be given up. A reset discards what was sent and not
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
            Socket socket = CONNECTING.get(key);
            CONNECTED.put(made, socket);
            setResets(socket, true);
            return made;
        } finally {
            CONNECTING.remove(key);
        }
    }

    /** Closes the connection politely. Any other end of it, also one by the driver's own time limit, resets it. */
    static void close(Connection connection) throws SQLException {
        setResets(CONNECTED.get(connection), false);
        connection.close();
    }

    private static void setResets(Socket socket, boolean resets) {
        try {
            if (socket != null) socket.setSoLinger(resets, 0);
        } catch (SocketException ignored) { // it is closed already
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
