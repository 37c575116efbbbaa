"""How long a hand-over through the keeper of each client library takes, beside one by SQL on connections of its own: from
before the leader lets go until the next one has its fence. The libraries' programs are those of clients/conformance."""

import json
import os
import shutil
import subprocess
import threading
import time

from handover import told
from harness import ROOT, ROUNDS, connect, one, percentile

WARM = 300  # rounds that do not count: Java and Node.js compile what runs often
TOOLS = {"python": ["python3"], "typescript": ["node", "npm"], "go": ["go"], "java": ["javac", "mvn"], "rust": ["cargo"]}
TABLE = "CREATE TABLE IF NOT EXISTS kit_writes (id bigserial, consumer text, name text, fence bigint)"
SLOW = 60  # seconds between the writes of a leader: only hand-overs are measured


class Program:
    """A program of a library. It leads when told so, and tells when it does."""

    def __init__(self, language, name):
        command = [ROOT / "clients" / language / "conformance"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.granted, self.stopped, self.opened = (threading.Event() for _ in range(3))
        self.at = 0.0
        threading.Thread(target=self._read, daemon=True).start()
        url = "postgresql://postgres:{PGPASSWORD}@127.0.0.1:{PGPORT}/postgres".format(**os.environ)
        self.tell(do="open", dsn=url, name=name, ttl=30, pool=1)
        assert self.opened.wait(120), f"{language} did not open"

    def _read(self):
        for line in self.process.stdout:
            event = json.loads(line)
            if event["event"] == "granted":
                self.at = event["at"]
            if known := {"granted": self.granted, "stopped": self.stopped, "opened": self.opened}.get(event["event"]):
                known.set()

    def tell(self, **command):
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def lead(self):
        self.granted.clear()
        self.tell(do="lead", id="keeper", name="keeper", every=SLOW)

    def let_go(self):
        self.stopped.clear()
        self.tell(do="stop", id="keeper")

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def until_queued(db, name):
    while one(db, "SELECT count(*) FROM eskit_lease.waiters WHERE resource = %s", name) == 0:
        time.sleep(0.001)
    time.sleep(0.02)  # the waiter sleeps by now


def by_keeper(db, programs):
    """Returns a function that hands the lease from one program to the other, and returns how many ms that takes."""
    leader, follower = programs
    leader.lead()
    assert leader.granted.wait(30)

    def hand_over():
        nonlocal leader, follower
        follower.lead()
        until_queued(db, "keeper")
        began = time.monotonic()
        leader.let_go()
        assert follower.granted.wait(30) and leader.stopped.wait(30)
        leader, follower = follower, leader
        return (leader.at - began) * 1000

    return hand_over


def by_sql(db, name):
    """The same by two connections with a session each."""
    sessions = [(conn := connect(), one(conn, "SELECT session FROM eskit_lease.session_open('by sql', '10 min')")) for _ in range(2)]
    acquire = f"SELECT granted, fence, revision FROM eskit_lease.lease_acquire('{name}', %s, true)"
    (leader, session), follower = sessions
    fence = one(leader, acquire, session)[1]

    def hand_over():
        nonlocal leader, follower, fence
        conn, session = follower
        known, told_at = [], []

        def wait():
            revision = one(conn, acquire, session)[2]
            granted = False
            while not granted:
                one(conn, "SELECT revision FROM eskit_lease.session_wait(%s, %s)", session, revision)
                granted, known[:], revision = (answer := one(conn, acquire, session))[0], [answer[1]], answer[2]
            told_at.append(time.monotonic())

        waiter = threading.Thread(target=wait)
        waiter.start()
        until_queued(db, name)
        began = time.monotonic()
        one(leader, "SELECT eskit_lease.lease_release(%s, %s)", name, fence)
        waiter.join()
        (leader, _), follower, fence = follower, sessions[0] if follower is sessions[1] else sessions[1], known[0]
        return (told_at[0] - began) * 1000

    return hand_over


def keeper(report):
    with connect() as db:
        db.execute(TABLE)
        for language, tools in TOOLS.items():
            if not all(map(shutil.which, tools)):
                report.add(f"keeper, {language}", "left out: this machine lacks it")
                continue
            programs = [Program(language, f"{language}-{n}") for n in range(2)]
            ways = {"keeper": by_keeper(db, programs), "sql": by_sql(db, f"by sql, {language}")}
            values = {name: [] for name in ways}
            for number in range(ROUNDS // 5 + WARM):
                for name, hand_over in ways.items():
                    took = hand_over()
                    if number >= WARM:
                        values[name].append(took)
            for program in programs:
                program.end()
            later = percentile(values["keeper"], 50) - percentile(values["sql"], 50)
            report.add(f"hand-over by the keeper, {language}", told(values["keeper"]), f"by SQL {told(values['sql'])}",
                       f"p50 later by {later:.2f} ms", "<= 3 ms", later <= 3)  # fmt: skip
