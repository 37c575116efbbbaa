"""Ways to cut a primary off from its standbys, and to reconnect them. The primary's clients notice nothing."""

import os
import signal
from pathlib import Path

import psycopg
from conftest import wait_until


class Pair:
    """A primary and the synchronous standby that confirms its sessions, over a link."""

    def __init__(self, primary, standby, link):
        self.primary, self.standby, self.link = primary, standby, link
        self.hba = primary.data / "pg_hba.conf"
        self.allowed, self.stopped = self.hba.read_text(), []

    def by_cutting(self):
        self.link.cut()

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
        self.link.mend()
        for pid in self.stopped:
            os.kill(pid, signal.SIGCONT)
        self.stopped = []
        if self.hba.read_text() != self.allowed:
            self.hba.write_text(self.allowed)
            try:
                self.primary.query("SELECT pg_reload_conf()")
            except psycopg.OperationalError:
                pass  # the primary is down, and reads the file when it starts

    def confirmers(self):
        return self.primary.workers("confirmer")

    def waiting(self):
        """Returns whether the confirmer waits for the standby."""
        return self.primary.query(
            "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'eskit_lease confirmer' AND state = 'active'"
        ) == [(1,)]
