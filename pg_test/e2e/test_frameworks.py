"""The programs of docs/drivers.md for asyncio, SQLAlchemy, Django, Rails and LISTEN, as they stand, each with the part that
is the reader's (frameworks/): directly, and through PgBouncer as it is installed."""

import contextlib
import json
import os
import subprocess
import sys
import warnings
from functools import cache
from pathlib import Path

import psycopg
import pytest
from client import Session
from conftest import ROOT, once, wait_until
from documents import files
from links import Link

pytestmark = once

TEXT = (ROOT / "docs/drivers.md").read_text()
PAGE = files(TEXT)
READERS = Path(__file__).parent / "frameworks"
COMMANDS = {
    "asyncio": [sys.executable, READERS / "asyncio_main.py"],
    "sqlalchemy": [sys.executable, READERS / "sqlalchemy_main.py"],
    "django": [sys.executable, READERS / "django_main.py"],
    "rails": ["ruby", READERS / "rails_main.rb"],
    "listen": [sys.executable, "listen.py"],
}
TERMINATE = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
               WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"""

WAITING = "SELECT pid FROM pg_locks WHERE relation = 'applied'::regclass AND NOT granted"


@cache
def without_rails():
    """Returns why Rails cannot be tested here, or None. The tests install no Ruby."""
    try:
        subprocess.run(["ruby", "-e", "require 'active_record'; require 'pg'"], check=True, capture_output=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        return "no Ruby with Active Record and pg on this machine (in Debian: ruby, ruby-activerecord, ruby-pg)"


def require_rails():
    if why := without_rails():
        warnings.warn(f"Rails is not tested: {why}", stacklevel=2)
        pytest.skip(f"Rails: {why}")


class Site:
    """The files of the page, and programs of theirs that talk to a server or pooler by this port."""

    def __init__(self, directory, port, dbname, ttl=10):
        directory.mkdir()
        self.directory, self.programs = directory, []
        for path, text in PAGE.items():
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_text(text.replace("\nTTL = 10 ", f"\nTTL = {ttl} "))
        self.environment = os.environ | {
            "DATABASE_URL": f"postgresql://postgres@127.0.0.1:{port}/{dbname}", "RAILS_ENV": "production", "PYTHONPATH": str(directory),
            "DB_NAME": dbname, "DB_HOST": "127.0.0.1", "DB_PORT": str(port), "DB_USER": "postgres",
        }  # fmt: skip

    def ask(self, framework, *args):
        """Returns what a program prints."""
        done = subprocess.run([*COMMANDS[framework], *args], cwd=self.directory, env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def start(self, framework, *args):
        program = Program([*COMMANDS[framework], *args], self.directory, self.environment, self.directory / f"output-{len(self.programs)}")
        self.programs.append(program)
        return program


class Program:
    def __init__(self, command, directory, environment, output):
        self.output = output
        with output.open("w") as written:
            self.process = subprocess.Popen(command, cwd=directory, env=environment, stdout=written, stderr=written)

    def runs(self):
        assert self.process.poll() is None, self.output.read_text()
        return True

    def said(self, text):
        return self.runs() and text in self.output.read_text()

    def leave(self):
        self.process.terminate()
        assert self.process.wait() == 0, self.output.read_text()

    def kill(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def site(server, db, tmp_path):
    """Gives a function that makes a site."""
    made = []

    def make(port=server.port, **kw):
        made.append(Site(tmp_path / str(len(made)), port, db, **kw))
        return made[-1]

    yield make
    for site in made:
        for program in site.programs:
            program.kill()


@pytest.fixture
def conn(connect):
    conn = connect()
    conn.execute("CREATE TABLE applied (id bigserial PRIMARY KEY, consumer text NOT NULL)")
    return conn


def applied(conn, consumer):
    return conn.execute("SELECT count(*) FROM applied WHERE consumer = %s", (consumer,)).fetchone()[0]


def living(conn):
    """Returns the sessions that live, draining or not: {session: consumer}."""
    return dict(conn.execute("SELECT session, consumer FROM eskit_lease.sessions WHERE state <> 'expired'").fetchall())


def test_every_program_is_known_here():
    """A test runs, or reads, each of these."""
    assert set(PAGE) == {
        "asyncio_leader.py", "sqlalchemy_leader.py", "settings.py", "orders/management/commands/lead.py", "config/database.yml",
        "app/models/lease_record.rb", "lib/leader.rb", "listen.py",
    }  # fmt: skip
    assert TEXT.count("\n```") == 2 * len(PAGE)


@contextlib.contextmanager
def stopped(server, db, conn, program):
    """Meanwhile the program's transaction waits to write."""
    with psycopg.connect(server.dsn(db)) as blocker:
        blocker.execute("LOCK TABLE applied")
        wait_until(lambda: program.runs() and conn.execute(WAITING).fetchall())
        yield


def lead_and_hand_over(server, db, site, conn, framework):
    """A process leads, and then the next one, which loses its connections."""
    first = site.start(framework, "lead", "first")
    with stopped(server, db, conn, first):
        assert conn.execute("SELECT resource FROM eskit_lease.blockers WHERE doing = 'fenced'").fetchall() == [("sub:orders",)], "fenced"
    wait_until(lambda: applied(conn, "first"))
    holder, fence = conn.execute("SELECT consumer, fence FROM eskit_lease.leases WHERE resource = 'sub:orders' AND state = 'held'").fetchone()
    assert holder == "first"
    assert site.ask(framework, "write", str(fence)) == "" and applied(conn, str(fence)) == 1
    second = site.start(framework, "lead", "second")
    wait_until(lambda: conn.execute("SELECT consumer FROM eskit_lease.waiters").fetchall() == [("second",)])

    first.leave()
    former = living(conn)
    assert list(former.values()) == ["second"], "the first process has closed its session"
    wait_until(lambda: applied(conn, "second"))
    assert site.ask(framework, "write", str(fence)) == "LF001" and applied(conn, str(fence)) == 1

    assert not any("begins anew" in program.output.read_text() for program in (first, second))
    conn.execute(TERMINATE)
    wait_until(lambda: second.said("second begins anew"))
    wait_until(lambda: living(conn).keys() - former)
    assert list(living(conn).values()) == ["second"] and not living(conn).keys() & former, "it has taken over"
    before = applied(conn, "second")
    wait_until(lambda: applied(conn, "second") > before)
    second.leave()
    assert living(conn) == {}


@pytest.mark.parametrize("way", ["direct", "pgbouncer"])
@pytest.mark.parametrize("framework", ["asyncio", "sqlalchemy", "django", "rails"])
def test_a_leader_and_the_next(server, db, request, conn, site, framework, way):
    if framework == "rails":
        require_rails()
    port = server.port if way == "direct" else request.getfixturevalue("pgbouncer").port
    lead_and_hand_over(server, db, site(port), conn, framework)


def test_django_binds_in_the_client_as_well(server, db, conn, site):
    django = site()
    django.environment["BIND_IN_CLIENT"] = "yes"
    lead_and_hand_over(server, db, django, conn, "django")


@pytest.mark.parametrize("framework", ["asyncio", "sqlalchemy"])
def test_a_silent_connection_is_given_up(server, db, conn, site, framework):
    """It is as behind a firewall that has forgotten it. A fenced transaction may be left open there, which the server ends."""
    server.query(f"ALTER DATABASE {db} SET idle_in_transaction_session_timeout = '1 s'")
    link = Link(server.port)
    program = site(link.port, ttl=2).start(framework, "lead", "first")
    wait_until(lambda: applied(conn, "first"))
    link.forget()
    wait_until(lambda: program.said("first begins anew"))
    before = applied(conn, "first")
    wait_until(lambda: applied(conn, "first") > before)
    program.kill()
    link.end()


def test_asyncio_finishes_the_transaction_in_hand(server, db, conn, site):
    """Meanwhile the session is draining."""
    program = site().start("asyncio", "lead", "first")
    with stopped(server, db, conn, program):
        program.process.terminate()
        wait_until(lambda: conn.execute("SELECT state FROM eskit_lease.sessions").fetchall() == [("draining",)])
    assert program.process.wait() == 0 and applied(conn, "first") == 1 and living(conn) == {}


def test_asyncio_leaves_when_the_transaction_in_hand_fails(server, db, conn, site):
    program = site().start("asyncio", "lead", "first")
    with stopped(server, db, conn, program):
        program.process.terminate()
        wait_until(lambda: conn.execute("SELECT state FROM eskit_lease.sessions").fetchall() == [("draining",)])
        conn.execute(f"SELECT pg_terminate_backend(pid) FROM ({WAITING}) AS waiting")
        assert program.process.wait() == 0


def test_autocommit_in_django(conn, site):
    assert json.loads(site().ask("django", "autocommit")) == {
        "outside": "alive", "request": "uncommitted", "atomic": "uncommitted", "TestCase": "uncommitted",
        "leases in a request": "alive", "leases in atomic": "alive",
    }  # fmt: skip


def test_autocommit_in_rails(conn, site):
    require_rails()
    # In the query cache of a request two heartbeats are one.
    assert json.loads(site().ask("rails", "autocommit")) == {
        "outside": "alive", "transaction": "uncommitted", "leases in a transaction": "alive", "prepared": 0, "cached": 1, "asked": 2,
    }  # fmt: skip


def test_autocommit_in_sqlalchemy(conn, site):
    assert json.loads(site().ask("sqlalchemy", "autocommit")) == {"engine": "uncommitted", "leases": "alive"}


def test_settings_of_rails():
    import yaml  # of this test alone

    settings = yaml.safe_load(PAGE["config/database.yml"])["production"]
    assert settings["leases"] == settings["primary"] | {"database_tasks": False}
    assert settings["primary"]["prepared_statements"] is False and settings["primary"]["advisory_locks"] is False


def test_listen(server, db, pgbouncer, conn, site):
    """Messages come while the program listens and asks; through PgBouncer in transaction mode none comes."""
    server.query(f"ALTER DATABASE {db} SET eskit_lease.notify = auto")
    session = Session(conn, "consumer")
    session.take("former")
    direct, pooled = site().start("listen"), site(pgbouncer.port).start("listen")
    for program in (direct, pooled):
        wait_until(lambda: program.said("consumer holds former"))  # noqa: B023
    for resource in ("first", "second", "third"):
        session.take(resource)
        wait_until(lambda: direct.said(f"granted {resource}\n"))  # noqa: B023
        wait_until(lambda: direct.said(f"consumer holds {resource}\n"))  # noqa: B023
    assert not pooled.said("granted")
