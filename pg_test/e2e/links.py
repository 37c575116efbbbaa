"""The network between programs of one machine: links over loopback that can be cut, in one direction or both, without
notice to either side."""

import contextlib
import socket
import threading

from conftest import wait_until
from psycopg.conninfo import make_conninfo


class Link:
    """A link to a port. Data sent while it is cut is late, not lost; a new connection gets no answer meanwhile."""

    def __init__(self, target):
        self.target, self.sockets, self.forgotten = target, set(), []
        self.to_server, self.to_client = threading.Event(), threading.Event()
        self.mend()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def dsn(self, dbname="postgres", **kw):
        return make_conninfo(host="127.0.0.1", port=self.port, user="postgres", dbname=dbname, **kw)

    def cut(self, *directions):
        for direction in directions or (self.to_server, self.to_client):
            direction.clear()

    def mend(self):
        self.to_server.set()
        self.to_client.set()

    def forget(self):
        """Present connections stay silent, as behind a firewall that has dropped their state. New ones get through."""
        self.cut()
        self.forgotten += self.to_server, self.to_client
        self.to_server, self.to_client = threading.Event(), threading.Event()
        self.mend()

    def delay(self):
        """Present connections are silent, and new ones get through. Returns a function that delivers what was sent
        meanwhile, but not on connections that were reset, and waits until those connections have ended."""
        ways, present = (self.to_server, self.to_client), self.sockets.copy()
        self.forget()

        def deliver():
            for way in ways:
                way.set()
            wait_until(lambda: not present & self.sockets)

        return deliver

    def end(self):
        for each in (self.listener, *self.sockets.copy()):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)  # wakes the reader
        self.listener.close()
        for way in (self.to_server, self.to_client, *self.forgotten):
            way.set()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        with self._known(client):
            self.to_server.wait()
            try:
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:  # no listener
                return
            with self._known(server):
                back = threading.Thread(target=self._carry, args=(server, client, self.to_client), daemon=True)
                back.start()
                self._carry(client, server, self.to_server)
                back.join()

    @contextlib.contextmanager
    def _known(self, end):
        self.sockets.add(end)
        with end:
            yield
        self.sockets.discard(end)

    @staticmethod
    def _carry(source, target, open):
        try:
            while data := source.recv(65536):
                open.wait()
                if is_reset(source):  # which discards what is not acknowledged
                    raise ConnectionResetError
                target.sendall(data)
            ends = socket.SHUT_WR
        except OSError:
            ends = socket.SHUT_RDWR
        open.wait()  # the end of a connection arrives no earlier than its data
        with contextlib.suppress(OSError):
            target.shutdown(ends)


def is_reset(end):
    closed = 7  # TCP_CLOSE; an end that was closed in order is in TCP_CLOSE_WAIT
    return end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == closed
