"""A server of its own for a part of the benchmark that needs other settings than bench/run gives to all: more sessions, more databases."""

import contextlib
import re
import subprocess

import psycopg

from harness import MAJOR, ROOT

# As in bench/run, except fsync: these parts measure the server's own work, which a shared disk would only blur.
SETTINGS = (
    "shared_buffers = 256MB", "max_connections = 100", "autovacuum = on", "max_wal_size = 8GB", "checkpoint_timeout = 30min", "fsync = off",
)  # fmt: skip


def run(*arguments):
    done = subprocess.run([ROOT / "pg_test/cluster", *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"pg_test/cluster {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")


class Cluster:
    def __init__(self, name):
        self.name = name
        conf = subprocess.run([ROOT / "pg_test/cluster", "conf", name], capture_output=True, text=True, check=True).stdout
        known = dict(re.findall(r"(\w+)='([^']*)'", conf))
        self.address = f"host={known['PGHOST']} port={known['PGPORT']} user=postgres"
        self.log = known["PGLOG"]

    def connect(self, database="postgres"):
        return psycopg.connect(f"{self.address} dbname={database}", autocommit=True)

    def restart(self):
        run("restart", self.name)

    def create(self, database):
        """Creates a database with the extension."""
        with self.connect() as db:
            db.execute(f'CREATE DATABASE "{database}"')
        with self.connect(database) as db:
            db.execute("CREATE EXTENSION eskit_lease")


@contextlib.contextmanager
def cluster(name, *settings):
    """A new server with these further settings and the extension in its database postgres. It is stopped afterwards."""
    run("stop", name)
    run("start", name, MAJOR, *SETTINGS, *settings)
    try:
        server = Cluster(name)
        with server.connect() as db:
            db.execute("CREATE EXTENSION eskit_lease")
        yield server
    finally:
        run("stop", name)
