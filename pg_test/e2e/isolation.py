"""Ways to take a primary's standbys away from it, and to give them back. Its clients notice nothing."""

import os
import signal
import socket
import threading
from pathlib import Path

import psycopg
from conftest import wait_until


class Proxy:
    """Between a standby and its primary: WAL goes one way, acknowledgements the other, and either can be cut. What is on its way meanwhile is late, not lost."""

    def __init__(self, server):
        self.server = server
        self.flows = {"wal": threading.Event(), "acknowledgements": threading.Event()}
        self.heal()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def conninfo(self):
        return f"host=127.0.0.1 port={self.port} user=postgres"

    def cut(self, *ways):
        for way in ways or self.flows:
            self.flows[way].clear()

    def heal(self):
        for flow in self.flows.values():
            flow.set()

    def close(self):
        self.listener.close()
        self.heal()

    def _accept(self):
        while True:
            try:
                standby, _ = self.listener.accept()
            except OSError:
                return
            try:
                primary = socket.create_connection(("127.0.0.1", self.server.port))
            except OSError:  # it is just being restarted
                standby.close()
                continue
            for source, sink, way in ((primary, standby, "wal"), (standby, primary, "acknowledgements")):
                threading.Thread(target=self._pump, args=(source, sink, self.flows[way]), daemon=True).start()

    def _pump(self, source, sink, flow):
        try:
            while data := source.recv(65536):
                flow.wait()
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class Pair:
    """A primary and the synchronous standby that it asks."""

    def __init__(self, primary, standby, proxy):
        self.primary, self.standby, self.proxy = primary, standby, proxy
        self.hba = primary.data / "pg_hba.conf"
        self.allowed, self.stopped = self.hba.read_text(), []

    def by_proxy(self):
        self.proxy.cut()

    def by_stopping(self):
        self.stopped = [pid for (pid,) in self.standby.query("SELECT pid FROM pg_stat_wal_receiver")]
        for pid in self.stopped:
            os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: all(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T" for pid in self.stopped))

    def by_refusing(self):
        self.hba.write_text("host replication all all reject\nlocal replication all reject\n" + self.allowed)
        self.primary.query("SELECT pg_reload_conf()")

        def gone():
            self.primary.query("SELECT pg_terminate_backend(pid) FROM pg_stat_replication")
            return self.primary.query("SELECT count(*) FROM pg_stat_replication") == [(0,)]

        wait_until(gone)
        wait_until(lambda: self.primary.logged("pg_hba.conf rejects replication connection"))

    def heal(self):
        self.proxy.heal()
        for pid in self.stopped:
            os.kill(pid, signal.SIGCONT)
        self.stopped = []
        if self.hba.read_text() != self.allowed:
            self.hba.write_text(self.allowed)
            try:
                self.primary.query("SELECT pg_reload_conf()")
            except psycopg.OperationalError:
                pass  # it is down, and reads the file when it starts

    def confirmers(self):
        return self.primary.workers("confirmer")

    def waiting(self):
        """Whether the confirmer waits for the standby."""
        return self.primary.query(
            "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'eskit_lease confirmer' AND state = 'active'"
        ) == [(1,)]
