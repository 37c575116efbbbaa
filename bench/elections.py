"""Elections by the library for Go and by River (riverqueue.com), each with its own defaults: how long a hand-over takes
when the leader ends politely and when it is killed, what renewals cost the server, and what a leader that was stopped
for longer than its lease may still write. elections/main.go is the program of both."""

import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import threading
import time

from harness import ROOT, ROUNDS, connect, number, one, show

KILLS = number("BENCH_ELECTIONS", 5)  # leaders that are killed, and leaders that are stopped
MINUTE = number("BENCH_ELECTION_SECONDS", 60)
TOPICS = number("BENCH_TOPICS", 40_000)
POLITE = max(3, ROUNDS // 25)
PROGRAM = ROOT / "target/bench/elections"
PATIENCE = 120
SETTLE = 15  # seconds before a measurement: statistics are up to date, and pages have been written since the checkpoint
# The lease of River: its interval of 5 s, and 10 s. Each system by its name here: the program's own name, and the TTL.
SYSTEMS = {"eskit_lease": ("eskit_lease", 0), "eskit_lease, 15 s": ("eskit_lease", 15), "River": ("river", 0)}
WRITES = "CREATE TABLE elections_writes (id bigserial, leader text, guarded boolean)"
# As the libraries' pages advise: a leader that is stopped within a fenced transaction keeps its lease until that one ends.
TIMEOUT = "ALTER DATABASE {} SET idle_in_transaction_session_timeout = '30 s'"
RENEWED = "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'river_leader'"
# Writes of a former leader after the first of the next one.
LATE = {
    "eskit_lease": """SELECT count(*) FROM elections_writes WHERE guarded AND leader = %s
        AND id > (SELECT min(id) FROM elections_writes WHERE guarded AND leader = %s)""",
    "eskit_lease, without guard": """SELECT count(*) FROM elections_writes WHERE NOT guarded AND leader = %s
        AND id > (SELECT min(id) FROM elections_writes WHERE guarded AND leader = %s)""",
    "River": """SELECT count(*) FROM river_job WHERE args ->> 'leader' = %s
        AND id > (SELECT min(id) FROM river_job WHERE args ->> 'leader' = %s)""",
}


class Instance:
    """A process that takes part in an election."""

    numbers = 0

    def __init__(self, system, what=""):
        Instance.numbers += 1
        program, ttl = SYSTEMS[system]
        self.name = f"{program}-{Instance.numbers}"
        self.process = subprocess.Popen([PROGRAM, program, self.name, str(ttl), str(what)], stdout=subprocess.PIPE, text=True)
        self.told = {event: threading.Event() for event in ("begun", "leads", "holds")}
        self.led_at = 0.0
        threading.Thread(target=self._read, daemon=True).start()
        self.wait("begun")

    def _read(self):
        for line in self.process.stdout:
            event = json.loads(line)
            if event["event"] == "leads":
                self.led_at = event["at"]
            self.told[event["event"]].set()

    def wait(self, event):
        assert self.told[event].wait(PATIENCE), f"{self.name}: never {event}"

    def signal(self, what):
        self.process.send_signal(what)

    def end(self):
        self.signal(signal.SIGTERM)
        self.process.wait(PATIENCE)


def elected(db, name):
    """Waits until the table of River says that an instance leads. Its work begins up to a second later, by chance."""
    while db.execute("SELECT FROM river_leader WHERE leader_id = %s", (name,)).rowcount == 0:
        time.sleep(0.002)
    return time.monotonic()


def hand_overs(system, end, times, settle):
    """Returns the seconds of each hand-over: from before the leader gets a signal until the next one is elected, and
    until it has begun its work."""
    took, leader = [], Instance(system)
    leader.wait("leads")
    with connect() as db:
        for _ in range(times):
            follower = Instance(system)
            time.sleep(settle())  # until it waits for its turn; and at any moment between two renewals
            began = time.monotonic()
            leader.signal(end)
            known = elected(db, follower.name) if system == "River" else None
            follower.wait("leads")
            took.append(((known or follower.led_at) - began, follower.led_at - began))
            leader.process.wait()
            leader = follower
    leader.end()
    return took


def stopped(system, times):
    """Returns, for each way to write, how much each leader wrote that was stopped until the next one had written."""
    ways = [way for way in LATE if way.startswith(system)]
    late = {way: [] for way in ways}
    with connect() as db:
        for _ in range(times):
            former = Instance(system, "write")
            former.wait("leads")
            follower = Instance(system, "write")
            time.sleep(random.uniform(2, 4))
            former.signal(signal.SIGSTOP)
            follower.wait("leads")
            time.sleep(3)  # River's leader writes each second
            former.signal(signal.SIGCONT)
            time.sleep(3)
            for way in ways:
                late[way].append(one(db, LATE[way], former.name, follower.name))
            for instance in (former, follower):
                instance.end()
    return late


class Server:
    """What the server has spent: transactions of this database, bytes of WAL, and seconds of all its processes."""

    def __init__(self, db):
        self.db = db
        self.postmaster = int(pathlib.Path(one(db, "SHOW data_directory"), "postmaster.pid").read_text().split()[0])

    def seconds(self):
        """Returns the seconds of each process that lives."""
        spent = {}
        for process in [self.postmaster, *self.children()]:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                spent[process] = int(pathlib.Path(f"/proc/{process}/schedstat").read_text().split()[0]) / 1e9
        return spent

    def children(self):
        return [int(pid) for pid in pathlib.Path(f"/proc/{self.postmaster}/task/{self.postmaster}/children").read_text().split()]

    def look(self):
        calls = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
        return one(self.db, calls), one(self.db, "SELECT pg_current_wal_lsn() - '0/0'"), self.seconds()

    def spend(self):
        """Returns what is spent in MINUTE seconds; of processes that have ended by then, their seconds are not known."""
        calls, wal, seconds = self.look()
        time.sleep(MINUTE)
        now = self.look()
        return now[0] - calls, now[1] - wal, sum(spent - seconds.get(process, 0) for process, spent in now[2].items())


def renewals(report):
    with connect() as db:
        server = Server(db)

        def spend():
            db.execute("VACUUM (FREEZE, ANALYZE)")  # otherwise autovacuum would do it meanwhile
            time.sleep(SETTLE)
            return server.spend()

        nothing = spend()
        ours = Instance("eskit_lease", TOPICS)
        ours.wait("holds")
        kept = spend()
        ours.end()
        river = Instance("River")
        river.wait("leads")
        before = one(db, RENEWED)
        elected = spend()
        renewed = one(db, RENEWED) - before
        river.end()
    told = lambda spent: f"{spent[0]:,.0f} transactions, {spent[1]:,.0f} B, {spent[2]:.3f} cpu s"  # noqa: E731
    report.add(f"{MINUTE} s with {TOPICS:,} topics led", told(kept), f"without anything {told(nothing)}")
    report.add(f"{MINUTE} s of River's one leader, with its other work", told(elected), f"with {renewed:,} renewals in {MINUTE + SETTLE} s, in an unlogged table")
    report.add(f"River with {TOPICS:,} topics", "left out: a schema has one leader")


def at_once(work):
    """Runs functions at the same time, as they only wait, and returns what each returned."""
    found = {}
    threads = [threading.Thread(target=lambda name=name, f=f: found.update({name: f()})) for name, f in work.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(work), "one has failed"
    return found


def build():
    """Builds the program. Returns why it cannot, or None."""
    if not shutil.which("go"):
        return "no go on this machine"
    here = {"cwd": ROOT / "bench/elections"}
    if subprocess.run(["go", "mod", "download"], capture_output=True, **here).returncode != 0:
        return "go cannot fetch its module"
    subprocess.run(["go", "build", "-o", PROGRAM, "."], check=True, **here)
    return None


def compare(report, what, ours, theirs, unit, scale):
    """Reports hand-overs, until the next one is elected, and until River's has begun its work."""
    elected, working = ([scale * took[n] for took in theirs] for n in range(2))
    report.ratio(what, [scale * took[0] for took in ours], "River", elected, unit=unit)
    report.add("  until River's leader has begun its work", "", show(working, unit))


def elections(report):
    report.add("against pgoutbox", "left out: Go's proxy does not serve its module")
    os.environ.setdefault("PGDATABASE", "postgres")
    if why := build():
        report.add("against River", f"left out: {why}")
        return
    subprocess.run([PROGRAM, "migrate"], check=True)
    with connect() as db:
        db.execute(WRITES)
        db.execute(TIMEOUT.format(os.environ["PGDATABASE"]))
        renewals(report)
    polite = {system: hand_overs(system, signal.SIGTERM, POLITE, lambda: 1) for system in ("eskit_lease", "River")}
    compare(report, "hand-over, the leader ends politely", polite["eskit_lease"], polite["River"], "ms", 1000)
    kill = lambda system: hand_overs(system, signal.SIGKILL, KILLS, lambda: random.uniform(2, 12))  # noqa: E731
    killed = at_once({system: lambda system=system: kill(system) for system in ("eskit_lease", "River")})
    killed["eskit_lease, 15 s"] = kill("eskit_lease, 15 s")
    for system, told in {"eskit_lease": "its TTL of 30 s", "eskit_lease, 15 s": "a TTL of 15 s, as River's lease"}.items():
        compare(report, f"hand-over, the leader is killed: {told}", killed[system], killed["River"], "s", 1)
    late = at_once({system: lambda system=system: stopped(system, KILLS) for system in ("eskit_lease", "River")})
    ours, river = late["eskit_lease"], late["River"]["River"]
    report.add("writes of a leader that was stopped, under guard", show(ours["eskit_lease"], "each"), f"River {show(river, 'each')}",
               "", "0", max(ours["eskit_lease"]) == 0)  # fmt: skip
    report.add("  the same, without guard (information)", show(ours["eskit_lease, without guard"], "each"))
