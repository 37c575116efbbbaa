"""The programs of examples/ in one consumer group: members in five languages are killed, lose their connections, are
cut off, stopped and drained, and others join. Each event is applied once, and each account's events in order. Idle
programs, those of demo/ too, only wait."""

import contextlib
import itertools
import os
import random
import re
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from client import Stubborn
from conftest import ROOT, once, wait_until
from languages import CONSUMERS, EXAMPLES, missing, require
from links import Link

TTL, PARTITIONS = 3, 12
# Each entry takes a turn under a lock of its partition that is held to the commit, so turns show the order of commits.
WITNESS = """
    ALTER TABLE ledger ADD turn bigint;
    CREATE TABLE turns (partition integer PRIMARY KEY, turn bigint NOT NULL);
    INSERT INTO turns SELECT generate_series(0, 11), 0;
    CREATE FUNCTION take_turn() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        UPDATE turns SET turn = turns.turn + 1 WHERE partition = eskit_lease.partition_for(NEW.account, 12) RETURNING turns.turn INTO NEW.turn;
        RETURN NEW;
    END $$;
    CREATE TRIGGER take_turn BEFORE INSERT ON ledger FOR EACH ROW EXECUTE FUNCTION take_turn();"""
CONTRADICTIONS = {
    "not applied as it was written": """SELECT e.position, e.account FROM events AS e WHERE NOT EXISTS (
        SELECT FROM ledger AS l WHERE (l.position, l.account, l.cents) = (e.position, e.account, e.cents))""",
    "applied more than once, or never written": """SELECT l.position, array_agg(l.consumer) FROM ledger AS l LEFT JOIN events USING (position)
        GROUP BY l.position HAVING count(*) > 1 OR count(events.account) = 0""",
    "not in the order of its account": """SELECT position, consumer FROM (
        SELECT *, lag(position) OVER (PARTITION BY account ORDER BY turn) AS before FROM ledger) AS l WHERE position < before""",
}


class Producer(Stubborn):
    """Writes events of random accounts, some in each transaction."""

    def __init__(self, server, dbname):
        super().__init__(SimpleNamespace(connect=lambda: server.connect(dbname, application_name="producer")))
        self.start()

    def work(self):
        accounts = random.choices([f"account-{number}" for number in range(100)], k=random.randint(1, 5))
        with self.conn.transaction(force_rollback=random.random() < 0.05):
            for account in accounts:
                self.conn.execute("INSERT INTO events (account, cents) VALUES (%s, %s)", (account, random.randint(1, 9999)))
                time.sleep(random.uniform(0, 0.01))  # so that transactions overlap
        time.sleep(0.02)


class Story:
    def __init__(self, server, dbname, via, log, ttl=TTL):
        self.server, self.db, self.log, self.numbers = server, dbname, log, itertools.count(1)
        self.link, self.ttl = Link(via.port), ttl
        self.url = f"postgresql://127.0.0.1:{self.link.port}/{dbname}?user=postgres"
        self.running = {}  # name: process

    def query(self, sql, *params):
        return self.server.query(sql, *params, dbname=self.db)

    def start(self, language):
        name = f"{language}-{next(self.numbers)}"
        # The drivers of these languages do not read PGPASSWORD.
        url = self.url + (f"&password={os.environ['PGPASSWORD']}" if language in ("rust", "java") else "")
        settings = {"DATABASE_URL": url, "CONSUMER": name, "CONSUMER_GROUP": "ledger", "TTL": str(self.ttl)}
        self.running[name] = subprocess.Popen(CONSUMERS[language], env=os.environ | settings, stdout=self.log, stderr=self.log)

    def until(self, condition):
        """Waits for a condition, and fails if a program has ended by itself."""

        def holds():
            ended = {name: process.returncode for name, process in self.running.items() if process.poll() is not None}
            assert not ended, f"ended by themselves: {ended}; see {self.log.name}"
            return condition()

        return wait_until(holds, pause=0.05)

    def sessions(self):
        """Returns the name and session of each living member."""
        return set(self.query("SELECT consumer, session FROM eskit_lease.group_members WHERE state = 'alive'"))

    def shared(self):
        """Returns whether the running programs, and no others, share all partitions."""
        members = self.query("SELECT consumer FROM eskit_lease.group_members")
        owners = Counter(owner for (owner,) in self.query("SELECT owner FROM eskit_lease.group_partitions WHERE state = 'owned'"))
        if Counter(list(self.running)) != Counter(name for (name,) in members) or owners.keys() != self.running.keys():
            return False
        return owners.total() == PARTITIONS and max(owners.values()) - min(owners.values()) <= 1

    def settle(self):
        """Waits until the programs share all partitions, and each of them works."""
        self.until(self.shared)
        known = self.query("SELECT coalesce(max(position), 0) FROM events")[0][0]
        worked = "SELECT DISTINCT consumer FROM ledger WHERE position > %s"
        self.until(lambda: {name for (name,) in self.query(worked, known)} >= self.running.keys())

    def kill(self, name):
        process = self.running.pop(name)
        process.kill()
        process.wait()

    def cut_connections(self):
        ours = "datname = %s AND backend_type = 'client backend' AND application_name <> 'producer' AND pid <> pg_backend_pid()"
        self.query(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {ours}", self.db)

    def cut_off(self):
        """Cuts all connections off without notice."""
        self.link.forget()

    def terminate_cut_off(self):
        """Terminates programs that get no answers: they end, and their sessions end by their TTLs."""
        self.link.forget()
        for process in self.running.values():
            process.terminate()
        for name, process in self.running.items():
            self.ended(name, process)
        self.running.clear()

    def stop_beyond_ttl(self, names):
        theirs = {member for member in self.sessions() if member[0] in names}
        for name in names:
            self.running[name].send_signal(signal.SIGSTOP)
        self.until(lambda: not theirs & self.sessions())
        for name in names:
            self.running[name].send_signal(signal.SIGCONT)

    def drain(self, name):
        """Drains a program. As soon as it has ended, its session is closed, not left to its TTL."""
        process = self.running.pop(name)
        process.terminate()
        self.ended(name, process)
        assert name not in dict(self.sessions())

    def ended(self, name, process):
        assert process.wait(timeout=30) in (0, 128 + signal.SIGTERM), f"{name} ended with {process.returncode}; see {self.log.name}"

    def end(self):
        for process in self.running.values():
            process.kill()
            process.wait()
        self.link.end()


@once
@pytest.mark.flaky(reruns=0)  # one fault found is proof
@pytest.mark.parametrize("way", ["direct", "pgbouncer"])
def test_five_languages(server, pgbouncer, db, way):
    languages = [language for language in CONSUMERS if not missing(language)]
    for language in CONSUMERS.keys() - set(languages):
        warnings.warn(f"the example in {language} is not tested: {missing(language)}", stacklevel=1)
    server.query((EXAMPLES / "schema.sql").read_text() + WITNESS, dbname=db)
    server.query(f"ALTER DATABASE {db} SET idle_in_transaction_session_timeout = '2 s'")  # a fenced transaction that is cut off keeps the partition
    with (ROOT / f"target/log/examples-{way}").open("w") as log:
        story = Story(server, db, pgbouncer if way == "pgbouncer" else server, log)
        producers = [Producer(server, db) for _ in range(2)]
        try:
            play(story, languages, producers)
        finally:
            for producer in producers:
                producer.end()
            story.end()
    for what, sql in CONTRADICTIONS.items():
        assert server.query(sql, dbname=db) == [], what


def play(story, languages, producers):
    for language in languages:
        story.start(language)
    story.settle()
    for some in (languages[::2], languages[1::2]):
        for name in [name for name in story.running if name.split("-")[0] in some]:
            story.kill(name)
        for language in some:
            story.start(language)
        story.settle()
    for trouble in (story.cut_connections, story.cut_off):
        for _ in range(8):  # in different places, as programs with a connection for each statement may have none at a time
            trouble()
            time.sleep(random.uniform(0, TTL / 2))
        story.settle()
    story.stop_beyond_ttl(random.sample(sorted(story.running), 2))
    story.settle()
    story.terminate_cut_off()
    for language in languages:
        story.start(language)
    story.settle()
    *others, last = random.sample(sorted(story.running), len(story.running))
    for name in others:
        story.drain(name)
    story.settle()
    for producer in producers:
        producer.end()
    story.until(lambda: story.query("SELECT (SELECT count(*) FROM events) = (SELECT count(*) FROM ledger)") == [(True,)])
    story.drain(last)


@once
def test_arguments_have_no_secrets(server, db):
    """A user that lists the processes sees neither the password nor the uuid of a session, with which it could act for
    that session."""
    server.query((EXAMPLES / "schema.sql").read_text(), dbname=db)
    seen = set()
    with (ROOT / "target/log/examples-arguments").open("w") as log:
        story = Story(server, db, server, log)
        secret = os.environ["PGPASSWORD"]
        story.url += f"&password={secret}"
        try:
            story.start("bash")
            story.until(story.shared)
            ((_, session),) = story.sessions()

            def listed():
                for path in Path("/proc").glob("[0-9]*/cmdline"):
                    with contextlib.suppress(OSError):
                        seen.add(path.read_bytes())
                return sum(b"psql" in arguments and b"bash-1" in arguments for arguments in seen) > 0

            for _ in range(10):
                story.until(listed)
        finally:
            story.end()
    assert not [arguments for arguments in seen if secret.encode() in arguments or str(session).encode() in arguments]


@once
@pytest.mark.parametrize("language", CONSUMERS)
def test_what_cannot_be_applied_stops_its_partition_only(server, db, language):
    require(language)
    server.query((EXAMPLES / "schema.sql").read_text() + "ALTER TABLE ledger ADD CHECK (account <> 'poison')", dbname=db)
    left = """SELECT count(*) FROM events AS e WHERE partition <> eskit_lease.partition_for('poison', 12)
              AND NOT EXISTS (SELECT FROM ledger AS l WHERE l.position = e.position)"""
    with (ROOT / f"target/log/examples-poison-{language}").open("w") as log:
        story = Story(server, db, server, log, ttl=120)  # longer than any wait here
        try:
            story.start(language)
            story.until(story.shared)
            story.query("INSERT INTO events (account, cents) VALUES ('poison', 1)")
            for _ in range(3):
                story.query("INSERT INTO events (account, cents) SELECT 'account-' || i, i FROM generate_series(1, 100) AS i")
                story.until(lambda: story.query(left) == [(0,)])
        finally:
            story.end()


TURN = 600  # seconds of a TTL; a wait for something that does not happen lasts for a third of it
WAITS = """SELECT query_start, clock_timestamp() - query_start > '1 s' FROM pg_stat_activity
           WHERE datname = current_database() AND state = 'active' AND query LIKE '%session_wait(%' AND pid <> pg_backend_pid()"""


def only_waits(query, add, applied, until=wait_until):
    """Proves of the only program in a database that it makes no call but a wait while there is nothing to do, and that
    it applies an event long before this wait would end. `applied` returns how many events are applied."""
    for number in range(applied() + 1, applied() + 4):

        def idle():
            waits = query(WAITS)
            return waits[0][0] if len(waits) == 1 and waits[0][1] else None

        since = until(idle)
        add()
        until(lambda: applied() == number)
        assert query("SELECT clock_timestamp() - %s < make_interval(secs => %s)", since, TURN / 3) == [(True,)]


@once
@pytest.mark.parametrize("language", CONSUMERS)
def test_an_idle_program_only_waits(server, db, long_waits, language):
    require(language)
    server.query((EXAMPLES / "schema.sql").read_text(), dbname=db)
    with (ROOT / f"target/log/examples-idle-{language}").open("w") as log:
        story = Story(server, db, server, log, ttl=TURN)
        try:
            story.start(language)
            story.until(story.shared)
            add = lambda: story.query("INSERT INTO events (account, cents) VALUES ('account-1', 100)")  # noqa: E731
            applied = lambda: story.query("SELECT count(*) FROM ledger")[0][0]  # noqa: E731
            only_waits(story.query, add, applied, story.until)
            # A restart of the server ends the watch of a session that lives on, and all connections. The program then
            # begins it again.
            ((_, session),) = story.sessions()
            story.query("SELECT eskit_lease.session_watch(%s, NULL)", session)
            story.cut_connections()
            add()
            story.until(lambda: applied() == 4)
            only_waits(story.query, add, applied, story.until)
        finally:
            story.end()


def demo_schema():
    """Returns the tables of the demo of one leader, without the extension and the role of its programs."""
    schema = (ROOT / "demo/schema.sql").read_text()
    return re.sub(r"^(?:CREATE (?:EXTENSION|ROLE)|SELECT eskit_lease\.grant|GRANT).*$", "", schema, flags=re.M)


@contextlib.contextmanager
def demo_program(server, db, program):
    """Runs a program of the demo, with a long TTL."""
    code = (ROOT / f"demo/{program}.py").read_text().replace("TTL = 2.0", f"TTL = {TURN}")
    options = ["--ttl", str(TURN)] if program == "member" else []
    env = os.environ | {"PGHOST": server.host, "PGPORT": str(server.port), "PGUSER": "postgres", "PGDATABASE": db, "PYTHONPATH": str(ROOT / "demo")}
    with (ROOT / f"target/log/demo-{program}").open("w") as log:
        process = subprocess.Popen([sys.executable, "-c", code, "program", *options], env=env, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.kill()
            process.wait()


DEMO = {
    "consumer": ("INSERT INTO order_events (customer, cents) VALUES (1, 100)", "applied"),
    "member": (
        """WITH head AS (UPDATE payment_heads SET position = position + 1 WHERE partition = 7 RETURNING partition, position),
                payment AS (INSERT INTO payments SELECT partition, position, 'account', 100 FROM head)
           SELECT eskit_lease.cursor_report_head('payments', partition, position) FROM head""",
        "payments_applied",
    ),
}


@once
@pytest.mark.parametrize("program", DEMO)
def test_an_idle_program_of_the_demo_only_waits(server, db, long_waits, program):
    event, witness = DEMO[program]
    query = lambda sql, *params: server.query(sql, *params, dbname=db)  # noqa: E731
    query(demo_schema() + (ROOT / "demo/group.sql").read_text())
    with demo_program(server, db, program):
        only_waits(query, lambda: query(event), lambda: query(f"SELECT count(*) FROM {witness}")[0][0])
