"""Programs of the client libraries (see README.md), a network that loses commits, and what must hold of what they tell."""

import contextlib
import itertools
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest
from conftest import ROOT, wait_until
from links import Link

ALL = ("python", "typescript", "go", "java", "rust")
LANGUAGES = os.environ.get("LANGUAGES", " ".join(ALL)).split()
TTL = 3.0
# How late an event may be told on a busy machine. The faults that the kit must find are later by a third of the TTL.
LATE = TTL / 10
TABLES = """
    CREATE TABLE kit_writes (id bigserial, consumer text, name text, fence bigint);
    CREATE TABLE kit_events (part int, position bigint, PRIMARY KEY (part, position));
    CREATE TABLE kit_applied (id bigserial, part int, position bigint, fence bigint, consumer text);
    CREATE TABLE kit_done (id bigserial, item bigint, consumer text);
    CREATE TABLE kit_once (key text, consumer text)"""


def url(port, dbname, host="127.0.0.1"):
    return f"postgresql://postgres:{os.environ['PGPASSWORD']}@{host}:{port}/{dbname}"


def program_of(language):
    """Returns the program of a library; that of a broken copy, for the test of the kit itself."""
    return Path(os.environ.get(f"KIT_{language.upper()}") or ROOT / "clients" / language) / "conformance"


COMMIT = re.compile(rb"(?<![a-z_])COMMIT(?![a-z_(])", re.I)  # and not cursor_commit


class Program:
    """A program of a library: it does what it is told, and tells what happens."""

    def __init__(self, language, name, log):
        self.language, self.name, self.events, self.told = language, name, [], threading.Condition()
        self.process = subprocess.Popen(
            [program_of(language)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, bufsize=1,
        )  # fmt: skip
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            event = json.loads(line)
            with self.told:
                self.events.append(event)
                self.told.notify_all()
        with self.told:
            self.told.notify_all()

    def do(self, what, **given):
        """Gives a command, and returns how many events there were before."""
        before = len(self.events)
        self.process.stdin.write(json.dumps({"do": what, **given}) + "\n")
        self.process.stdin.flush()
        return before

    def open(self, dsn, ttl=TTL, **given):
        before = self.do("open", dsn=dsn, name=self.name, ttl=ttl, **given)
        return self.wait("opened", before)["session"]

    def all(self, event, since=0, **match):
        return [told for told in self.events[since:] if told["event"] == event and match.items() <= told.items()]

    def wait(self, event, since=0, timeout=60, **match):
        """Returns the first such event."""
        deadline = time.monotonic() + timeout
        with self.told:
            while not (found := self.all(event, since, **match)):
                assert self.reader.is_alive(), f"{self.name} ended; its last events: {self.events[-5:]}"
                assert self.told.wait(deadline - time.monotonic()), f"{self.name}: no {event} {match}: {self.events[-5:]}"
        return found[0]

    def ask(self, what, event, **given):
        return self.wait(event, self.do(what, **given))

    def signal(self, number):
        self.process.send_signal(number)

    @contextlib.contextmanager
    def stopped(self):
        self.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.signal(signal.SIGCONT)

    def kill(self):
        self.signal(signal.SIGKILL)
        self.process.wait()

    def end(self, timeout=60):
        """Ends it as its user would, and checks that it ends well."""
        self.process.stdin.close()
        assert self.process.wait(timeout) == 0, f"{self.name}: {self.events[-5:]}"

    def discard(self):
        with contextlib.suppress(OSError):
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()


class LosingLink(Link):
    """A link that breaks a connection at its next COMMIT: `before` the server gets it, or `after`."""

    lose = None
    lost = 0

    def _carry(self, source, target, open):
        if open is not self.to_server:
            super()._carry(source, target, open)
            return
        try:
            while data := source.recv(65536):
                open.wait()
                way, is_commit = self.lose, COMMIT.search(data)
                if not (way and is_commit):
                    target.sendall(data)
                    continue
                self.lose, self.lost = None, self.lost + 1
                # The client learns at once that the connection is lost, and the server does not.
                source.shutdown(socket.SHUT_RDWR)
                held = target.dup()
                if way == "after":
                    target.sendall(data)
                self.held.append(held)
                return
        except OSError:
            pass
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def __init__(self, target):
        self.held = []
        super().__init__(target)

    def let_go(self):
        """Ends what the server still has of lost connections."""
        for each in self.held:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self.held.clear()


# ---- what must hold ----


def tenures(programs, name):
    """Returns the tenures of a name, by their fences: the program, when it was granted, and when its work had to end."""
    found = []
    for program in programs:
        leads = {told["id"]: told for told in program.events if told["event"] == "granted" and told["id"] == name}
        for granted in (told for told in program.events if told["event"] == "granted" and told["id"] in leads):
            over = [told["at"] for event in ("cancelled", "ended") for told in program.all(event, fence=granted["fence"], id=name)]
            found.append((granted["fence"], program, granted["at"], min(over, default=None)))
    return sorted(found, key=lambda tenure: tenure[0])


def judge_leads(programs, name, paused=()):
    """Each fence is granted once. A leader has stopped before the next one is granted, but for one that was `paused`, or
    killed."""
    found = tenures(programs, name)
    fences = [fence for fence, *_ in found]
    assert len(set(fences)) == len(fences), f"a fence twice: {fences}"
    for (fence, program, _, over), (_, other, granted, _) in pairwise(found):
        if program in paused or program.process.poll() not in (None, 0):
            continue
        assert over is not None and over < granted + LATE, f"{program.name} leads on under {fence} beside {other.name}"
        late = [told["at"] - granted for told in program.all("begin", fence=fence, id=name) if told["at"] > granted + LATE]
        assert not late, f"{program.name} began work under {fence} up to {max(late)} s after {other.name} was granted"
    return found


def judge_writes(conn, name):
    """The writes of a fence are of one consumer, and none comes after a write of a later fence."""
    rows = conn.execute("SELECT fence, consumer FROM kit_writes WHERE name = %s ORDER BY id", (name,)).fetchall()
    fences = [fence for fence, _ in rows]
    assert fences == sorted(fences), "a write under a fence that was superseded"
    assert len({consumer for _, consumer in set(rows)}) <= len(set(rows)) == len(set(fences)), "two owners of a fence"
    return rows


def judge_applied(conn, parts, last):
    """Waits until all events are applied. Each is applied once, in the order of its partition."""
    count = "SELECT count(*) FROM kit_applied"
    wait_until(lambda: conn.execute(count).fetchone()[0] >= parts * last, pause=0.05)
    for part in range(parts):
        rows = conn.execute("SELECT position, fence FROM kit_applied WHERE part = %s ORDER BY id", (part,)).fetchall()
        assert [position for position, _ in rows] == list(range(1, last + 1)), f"partition {part}"
        fences = [fence for _, fence in rows]
        assert fences == sorted(fences), f"partition {part}: an earlier fence after a later one"


# ---- figures ----

FIGURES = ROOT / "target/log/clients-figures"


def pytest_sessionstart(session):
    if "PYTEST_XDIST_WORKER" not in os.environ:
        FIGURES.unlink(missing_ok=True)


def pytest_terminal_summary(terminalreporter):
    """Prints what the tests have measured: a row for each measurement, a column for each language."""
    rows = {}
    for line in FIGURES.read_text().splitlines() if FIGURES.exists() else ():
        told = json.loads(line)
        rows.setdefault(told["what"], {}).setdefault(told["which"], []).append(told["value"])
    if rows:
        columns = [which for which in dict.fromkeys((*ALL, MIXED)) if any(which in row for row in rows.values())]
        terminalreporter.write_line("| | " + " | ".join("mixed" if which == MIXED and len(LANGUAGES) > 1 else which for which in columns) + " |")
        terminalreporter.write_line("|---" * (len(columns) + 1) + "|")
        for what, row in sorted(rows.items()):
            cells = [f"{statistics.median(row[which]):.4g}" if which in row else "" for which in columns]
            terminalreporter.write_line(f"| {what} | " + " | ".join(cells) + " |")


# ---- what a test is given ----


class World:
    """A database with the kit's tables, and programs on it: of one language, or of all in turn."""

    def __init__(self, server, dbname, languages, log):
        self.server, self.dbname, self.log = server, dbname, log
        self.which = "-".join(languages)
        self.languages, self.programs, self.links = itertools.cycle(languages), [], []
        self.conn = server.connect(dbname)
        self.conn.execute(TABLES)
        # The server ends the transaction of a program that is stopped or cut off, so that others need not wait for it.
        self.conn.execute(f"ALTER DATABASE {dbname} SET idle_in_transaction_session_timeout = '2 s'")

    def link(self, port=None, kind=Link):
        self.links.append(kind(port or self.server.port))
        return self.links[-1]

    def url(self, port=None):
        return url(port or self.server.port, self.dbname)

    def start(self, dsn=None, opens=True, **given):
        program = Program(next(self.languages), f"{len(self.programs)}", self.log)
        self.programs.append(program)
        if opens:
            program.open(dsn or self.url(), **given)
        return program

    def several(self, count, *args, **given):
        """Starts several programs at once."""
        with ThreadPoolExecutor(count) as pool:
            return [each.result() for each in [pool.submit(self.start, *args, **given) for _ in range(count)]]

    def has(self, sql, *params):
        return self.conn.execute(sql, params).fetchone()[0]

    def sessions(self):
        """Returns how many sessions live."""
        return self.has("SELECT count(*) FROM eskit_lease.sessions WHERE state <> 'expired'")

    def lost(self):
        """Returns how many sessions have ended by their TTL."""
        return self.has("SELECT value FROM eskit_lease.stats() WHERE name = 'sessions_expired'")

    def tell(self, what, value):
        """Notes a figure for the table at the end of a run."""
        with FIGURES.open("a") as file:
            file.write(json.dumps({"which": self.which, "what": what, "value": value}) + "\n")

    def add_events(self, parts, last, group="g"):
        self.conn.execute("SELECT eskit_lease.group_create(%s, %s)", (group, parts))
        self.conn.execute("INSERT INTO kit_events SELECT p, n FROM generate_series(0, %s) AS p, generate_series(1, %s) AS n", (parts - 1, last))

    def end(self):
        for program in self.programs:
            program.discard()
        for link in self.links:
            link.end()
        self.conn.close()


# All of them mixed, and each of them alone; `KIT=mixed` leaves the latter out where that is more of the same.
MIXED = "-".join(LANGUAGES)
WORLDS = [MIXED] if os.environ.get("KIT") == "mixed" else dict.fromkeys([*LANGUAGES, MIXED])


@pytest.fixture(params=WORLDS)
def world(request, server, db, tmp_path):
    """Programs of one language, or of all of them in turn."""
    with (tmp_path / "errors").open("w") as log:
        world = World(server, db, request.param.split("-"), log)
        yield world
        world.end()
    print((tmp_path / "errors").read_text()[-4000:])


@pytest.fixture(params=LANGUAGES)
def alone(request, server, db, tmp_path):
    """Programs of one language."""
    with (tmp_path / "errors").open("w") as log:
        world = World(server, db, [request.param], log)
        yield world
        world.end()
    print((tmp_path / "errors").read_text()[-4000:])


@pytest.fixture
def fleet(server, db, tmp_path):
    """Programs of all languages, on a database of its own."""
    with (tmp_path / "errors").open("w") as log:
        world = World(server, db, LANGUAGES, log)
        yield world
        world.end()
    print((tmp_path / "errors").read_text()[-4000:])
