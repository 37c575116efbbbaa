"""Fixtures of the end-to-end tests: a server with the extension preloaded, databases, clients and a pooler."""

import itertools
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

ROOT = Path(__file__).resolve().parents[2]
MAJOR = os.environ["PG_MAJOR"]  # from pg_test/env, as are PG_BIN and the PATH
SUITE = os.environ.get("SUITE", "")  # a suite whose servers others must not stop, as they run at the same time
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")  # the process that runs this file, if there are several
once = pytest.mark.skipif(MAJOR != "15", reason="the same on all majors")


def wait_until(condition, timeout=60, pause=0.005):
    """Polls until `condition()` is true, and returns its result. The limit is for a test that hangs, and no measure of
    speed."""
    deadline = time.monotonic() + timeout
    while not (result := condition()):
        assert time.monotonic() < deadline, f"not within {timeout} s: {condition}"
        time.sleep(pause)
    return result


class Server:
    """A throw-away cluster of pg_test/cluster, with further lines for its postgresql.conf. `of`: a major, or
    MAJOR-NAME (see pg_test/env)."""

    def __init__(self, name, *lines, copy_of=None, of=MAJOR):
        self.home, self.name = of, "-".join(filter(None, [SUITE, name, WORKER, of]))
        self._cluster("stop")
        lines = ("statement_timeout = '120s'", *lines)  # a test that hangs fails
        self._cluster("start", of, *(["--copy", str(copy_of)] if copy_of else []), *lines)
        conf = dict(word.split("=", 1) for word in shlex.split(self._cluster("conf")) if "=" in word)
        self.host, self.port = conf["PGHOST"], int(conf["PGPORT"])
        self.data, self.log = Path(conf["PGDATA"]), Path(conf["PGLOG"])

    def _cluster(self, command, *args):
        done = subprocess.run([ROOT / "pg_test/cluster", command, self.name, *args], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def dsn(self, dbname="postgres", **kw):
        return make_conninfo(**{"host": self.host, "port": self.port, "user": "postgres", "dbname": dbname} | kw)

    def connect(self, dbname="postgres", **kw):
        return psycopg.connect(self.dsn(dbname, **kw), autocommit=True)

    def query(self, sql, *params, dbname="postgres"):
        """Returns the rows of one statement, run on a connection of its own."""
        with self.connect(dbname) as conn:
            cur = conn.execute(sql, params or None)
            return cur.fetchall() if cur.description is not None else []

    def workers(self, kind="worker", dbname=None):
        """Returns the process ids of database workers, or of the launcher."""
        found = self.query(
            "SELECT pid FROM pg_stat_activity WHERE backend_type = %s AND (%s::text IS NULL OR datname = %s)",
            f"eskit_lease {kind}", dbname, dbname,
        )  # fmt: skip
        return [pid for (pid,) in found]

    def set(self, **settings):
        """Changes settings of the running server; None resets a setting."""
        with self.connect() as conn:
            for name, value in settings.items():
                name = name.replace("__", ".")
                conn.execute(f"ALTER SYSTEM SET {name} = '{value}'" if value is not None else f"ALTER SYSTEM RESET {name}")
            conn.execute("SELECT pg_reload_conf()")

    def logged(self, text):
        """Returns the lines of the log with this text."""
        return [line for line in self.log.read_text(errors="replace").splitlines() if text in line]

    @property
    def pid(self):
        """The process id of the postmaster."""
        return int((self.data / "postmaster.pid").read_text().split()[0])

    def stop(self, mode="fast"):
        self._cluster("stop", mode)

    def restart(self, mode="fast"):
        self._cluster("restart", mode)

    def crash(self):
        """Kills a backend with SIGKILL, and returns when the server has recovered."""
        find = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'"
        before = self.query(find)

        def recovered():
            try:
                return self.query(find) not in ([], before)
            except psycopg.OperationalError:
                return False

        with self.connect() as victim:
            os.kill(victim.info.backend_pid, signal.SIGKILL)
        wait_until(recovered)


def make_anew(conn):
    """Drops and creates the extension, for a test on a server that other tests have used, and rolls back transactions
    that those left prepared."""
    for (left,) in conn.execute("SELECT gid FROM pg_prepared_xacts").fetchall():
        conn.execute(f"ROLLBACK PREPARED '{left}'")
    conn.execute("DROP EXTENSION IF EXISTS eskit_lease")
    conn.execute("CREATE EXTENSION eskit_lease")


def standby_of(primary, name="e2e-standby", signal=True):
    """Returns a hot standby that streams from `primary`, which has room for it; without `signal`, a server on the
    restored base backup."""
    base = Path(str(primary.data) + "-base")
    shutil.rmtree(base, ignore_errors=True)
    base.mkdir(mode=0o700)
    tool = Path(os.environ["PG_BIN"]) / "pg_basebackup"
    subprocess.run([tool, "-d", primary.dsn(), "-D", base, "-X", "stream", "-c", "fast", "--no-sync"], check=True)
    if signal:
        (base / "standby.signal").touch()
    connection = f"host={primary.host} port={primary.port} user=postgres"
    server = Server(name, f"primary_conninfo = '{connection}'", "hot_standby = on", copy_of=base)
    shutil.rmtree(base)
    return server


def caught_up(primary, standby):
    """Waits until the standby has replayed all that the primary has written."""
    lsn = primary.query("SELECT pg_current_wal_lsn()")[0][0]
    wait_until(lambda: standby.query("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", lsn) == [(True,)])


def cut_off(standby):
    """Cuts a standby off from its primary."""
    standby.set(primary_conninfo="")
    wait_until(lambda: standby.query("SELECT count(*) FROM pg_stat_wal_receiver") == [(0,)])


def follow(server, primary):
    """Starts a stopped server as a standby of `primary`, which has received all WAL of that server."""
    (server.data / "standby.signal").touch()
    with (server.data / "postgresql.auto.conf").open("a") as settings:
        settings.write(f"primary_conninfo = 'host={primary.host} port={primary.port} user=postgres'\n")
    server.restart()


def promote(standby):
    assert standby.query("SELECT pg_promote(false)") == [(True,)]  # a call that waits may block what is still to be replayed
    wait_until(lambda: standby.query("SELECT pg_is_in_recovery()") == [(False,)])


class Pooler:
    """PgBouncer in transaction mode, in front of every database of a server, as its superuser."""

    def __init__(self, server, directory, **settings):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.pidfile = directory / "pgbouncer.pid"
        settings = {
            "listen_addr": "127.0.0.1", "listen_port": self.port, "unix_socket_dir": "",
            "auth_type": "scram-sha-256", "auth_file": directory / "userlist.txt", "pool_mode": "transaction", "default_pool_size": 10, "max_client_conn": 500,
            "ignore_startup_parameters": "extra_float_digits",  # which JDBC sends
            "pidfile": self.pidfile, "logfile": directory / "pgbouncer.log",
        } | settings  # fmt: skip
        (directory / "userlist.txt").write_text(f'"postgres" "{os.environ["PGPASSWORD"]}"\n')
        ini = directory / "pgbouncer.ini"
        ini.write_text(
            f"[databases]\n* = host={server.host} port={server.port} user=postgres\n[pgbouncer]\n"
            + "".join(f"{key} = {value}\n" for key, value in settings.items())
        )
        subprocess.run(
            ["bash", "-c", '. "$0" "$1" && as_server pgbouncer --quiet --daemon "$2"', ROOT / "pg_test/env", MAJOR, ini], check=True
        )
        wait_until(self._answers)

    def _answers(self):
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def dsn(self, dbname, **kw):
        return make_conninfo(**{"host": "127.0.0.1", "port": self.port, "user": "postgres", "dbname": dbname} | kw)

    def stop(self):
        os.kill(int(self.pidfile.read_text()), signal.SIGKILL)
        wait_until(lambda: not self._answers())


@pytest.fixture(scope="session")
def server():
    server = Server("e2e")
    yield server
    server.stop()


@pytest.fixture(scope="session")
def pgbouncer(server, tmp_path_factory):
    pooler = Pooler(server, tmp_path_factory.mktemp("pgbouncer"))
    yield pooler
    pooler.stop()


def pytest_terminal_summary(terminalreporter):
    """Prints why a test was tried again, which pytest-rerunfailures does not tell of a test that passed then."""
    for report in terminalreporter.stats.get("rerun", []):
        crash = getattr(report.longrepr, "reprcrash", None)
        why = crash.message if crash else report.longreprtext
        terminalreporter.section(f"{report.nodeid} was tried again", "_")
        terminalreporter.line(report.longreprtext)
        terminalreporter.line(f"RERUN {report.nodeid} - {' '.join(why.split())}")


numbers = itertools.count(1)


@pytest.fixture
def db(server):
    """Gives the name of a fresh database with the extension."""
    name = f"test_{next(numbers)}"
    server.query(f"CREATE DATABASE {name}")
    server.query("CREATE EXTENSION eskit_lease", dbname=name)
    yield name
    server.query(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@pytest.fixture
def no_worker(server):
    """Switches the worker off while the test runs."""
    server.set(eskit_lease__worker="off")
    wait_until(lambda: not server.workers())
    yield
    server.set(eskit_lease__worker=None)


@pytest.fixture
def long_waits(server):
    """Lets a wait last for a third of a TTL, however long that is."""
    server.set(eskit_lease__max_wait="10 min")
    wait_until(lambda: server.query("SHOW eskit_lease.max_wait") == [("10min",)])
    yield
    server.set(eskit_lease__max_wait=None)


@pytest.fixture
def background():
    """Gives a function that runs calls in threads: background(function, argument...) returns a future."""
    with ThreadPoolExecutor(max_workers=64) as pool:
        yield pool.submit


@pytest.fixture
def connect(server, db):
    """Gives a function that connects to `db`, by default directly and in autocommit. The connections end with the
    test."""
    made = []

    def make(via=server, dbname=db, autocommit=True, **kw):
        conn = psycopg.connect(via.dsn(dbname, **kw), autocommit=autocommit)
        if via is not server:
            conn.prepare_threshold = None  # a pooler in transaction mode may support no prepared statements
        made.append(conn)
        return conn

    yield make
    for conn in made:
        conn.close()
