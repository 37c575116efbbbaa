"""Members of a group come and go by a random schedule while producers write. At the end everything must have been
applied once and in order. Producers, members and proofs are those of `make demo`."""

import json
import os
import random
import signal
import sys
import time
from collections import Counter

from conftest import ROOT

sys.path.append(str(ROOT / "demo"))
from group_proof import contradictions  # noqa: E402
from stage import HERE, Actor, Stage  # noqa: E402

TTL = 1.0
MOST = 6  # members at a time
STOPS = 6  # the least number of stops, however slow the machine is
PRODUCERS, RATE = 2, 200  # payments per second of each
# The events that may happen next, and how often.
FAULTS = {"start": 4, "kill": 3, "stop": 6, "leave": 3, "take_over": 3, "replace": 1}


class Fault(AssertionError):
    """A fault that must never occur, with the history that led to it."""


class Scenario(Stage):
    def __init__(self, server, dbname, pooler, seed, seconds, history):
        super().__init__()
        self.random, self.seconds, self.pooler, self.history_file = random.Random(seed), seconds, pooler, history
        self.db = server.connect(dbname)
        self.db.execute((HERE / "group.sql").read_text())
        # Shorter than the TTL, so that a stopped member loses its revoked partitions before it loses its session.
        self.db.execute("SELECT eskit_lease.group_alter('payments', rebalance_timeout => '600 ms')")
        via = pooler or server
        self.env = os.environ | {"PGHOST": "127.0.0.1", "PGPORT": str(via.port), "PGUSER": "postgres", "PGDATABASE": dbname}
        self.stops = 0
        self.numbers, self.asleep, self.leaving, self.done = 0, {}, set(), []

    def run(self):
        try:
            self.play()
            self.prove()
        finally:
            self.end()
            self.db.close()

    # ---- the schedule ----

    def play(self):
        for number in range(PRODUCERS):
            self.others.append(Actor(self, "payments.py", f"producer-{number}", str(RATE), env=self.env).process)
        for _ in range(3):
            self.start()
        self.until_or_fault("three have joined", lambda: len(self.joined()) == 3)
        ends = time.monotonic() + self.seconds
        while time.monotonic() < ends or self.stops < STOPS:
            self.live(self.random.uniform(0.05, 0.6))
            fault = self.random.choices(list(FAULTS), FAULTS.values())[0]
            awake = [member for member in self.joined() if member not in self.asleep]
            if fault == "start" or len(awake) < 2:
                if len(self.members()) < MOST:
                    self.start()
            else:
                getattr(self, fault)(self.random.choice(awake))

    def members(self):
        return [actor for actor in self.actors if actor.name.startswith("member") and actor.running()]

    def joined(self):
        return [member for member in self.members() if member.said("joined")]

    def live(self, seconds):
        """Lets time go by, and continues stopped members whose time has come."""
        until = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            for member in [member for member, wake in self.asleep.items() if wake <= now]:
                self.wake(member)
            self.pump(min(0.02, max(0.001, until - now)))
            for actor in self.actors:
                if actor.process.poll() not in (None, 0, -signal.SIGKILL):
                    raise Fault(f"{actor.name} ended with {actor.process.returncode}\n{self.history()}")
            if now >= until:
                break

    def did(self, what, member):
        self.done.append({"at": time.time(), "event": what, "who": self.who(member)})

    @staticmethod
    def who(member):
        return f"{member.name}/{member.process.pid}"

    def start(self, name=None, takeover=False):
        if not name:
            self.numbers += 1
            name = f"member-{self.numbers}"
        isolation = self.random.choices(["READ_COMMITTED", "REPEATABLE_READ", "SERIALIZABLE"], [6, 3, 1])[0]
        args = ["--ttl", str(TTL), "--isolation", isolation, "--toil", "0.01"]
        if self.random.random() < 0.5 and not self.pooler:
            args.append("--attach")
        if takeover:
            args.append("--takeover")
        self.did(" ".join(["started", *args]), Actor(self, "member.py", name, *args, env=self.env))

    def kill(self, member):
        member.signal(signal.SIGKILL)
        member.process.wait()
        self.did("killed", member)

    def stop(self, member):
        """Stops a member for less than its TTL, or for more; mostly in the middle of a batch."""
        patience = time.monotonic() + self.random.choice([0, 0.5, 0.5])
        while member.last() != "read" and time.monotonic() < patience:
            self.live(0)
        seconds = TTL * self.random.uniform(0.5, 3)
        self.stops += 1
        member.signal(signal.SIGSTOP)
        self.asleep[member] = time.monotonic() + seconds
        self.did(f"stopped for {seconds:.2f} s", member)

    def wake(self, member):
        del self.asleep[member]
        member.signal(signal.SIGCONT)
        self.did("continued", member)

    def leave(self, member):
        if member not in self.leaving:  # a second signal may meet a process that no longer handles it
            self.leaving.add(member)
            member.signal(signal.SIGTERM)
            self.did("asked to leave", member)

    def take_over(self, member):
        """Kills or stops a process, and starts another one under its name, which takes over."""
        self.random.choice([self.kill, self.stop])(member)
        self.start(member.name, takeover=True)

    def replace(self, member):
        """Replaces a member as in a rolling update: the new process starts before the old one leaves."""
        self.start(member.name, takeover=True)
        self.live(self.random.uniform(0, 0.5))
        self.leave(member)

    # ---- the end ----

    def prove(self):
        for producer in self.others:
            producer.send_signal(signal.SIGTERM)
        self.until_or_fault("the producers end", lambda: all(producer.poll() is not None for producer in self.others))
        for member in list(self.asleep):
            self.wake(member)
        self.start()
        self.until_or_fault("all have joined", lambda: self.joined() == self.members())
        lag = "SELECT count(*) FROM eskit_lease.group_lag WHERE lag > 0"
        self.until_or_fault("all is applied", lambda: self.db.execute(lag).fetchone() == (0,))
        for member in self.members():
            self.leave(member)
        self.until_or_fault("the members have left", lambda: not self.members())
        owned = "SELECT count(*) FROM eskit_lease.group_partitions WHERE state <> 'free'"
        self.until_or_fault("nothing is owned", lambda: self.db.execute(owned).fetchone() == (0,))
        self.live(0)
        for what, rows in contradictions(self.db):
            if rows:
                raise Fault(f"{what}: {rows[:20]}\n{self.history(rows[0][0])}")
        print(self.summary())

    def until_or_fault(self, what, condition):
        try:
            self.until(what, lambda: self.live(0.02) or condition())
        except TimeoutError as error:
            raise Fault(f"{error}\n{self.history()}") from error

    def lines(self):
        lines = self.done + [line | {"who": self.who(actor)} for actor in self.actors for line in actor.log]
        return sorted(lines, key=lambda line: line["at"])

    def history(self, partition=None):
        """Writes the whole history to a file, and returns what concerns one partition."""
        self.pump(0)
        self.history_file.parent.mkdir(exist_ok=True)
        with self.history_file.open("w") as file:
            for line in self.lines():
                print(json.dumps(line), file=file)
        told = [f"The whole history: {self.history_file}"]
        if partition is not None:
            turns = """SELECT turn, fence, member, min(position), max(position), count(*) FROM payments_applied
                       WHERE partition = %s GROUP BY 1, 2, 3 ORDER BY 1"""
            told.append(f"Commits in partition {partition}: turn, fence, member, first and last position, count")
            told += ["  %6d %16d %-20s %6d %6d %4d" % row for row in self.db.execute(turns, (partition,))]
        else:
            told.append("Partitions that are owned, or not at their end:")
            state = """SELECT partition, state, owner, target, p.fence, revoke_in, lag
                       FROM eskit_lease.group_partitions p JOIN eskit_lease.group_lag USING (group_name, partition)
                       WHERE lag > 0 OR state <> 'free'"""
            told += [f"  {row}" for row in self.db.execute(state)]
        return "\n".join(told)

    def summary(self):
        counts = Counter(f"{line['event'].split()[0]} {line.get('sqlstate', '')}".strip() for line in self.lines())
        applied, generation = self.db.execute(
            "SELECT (SELECT count(*) FROM payments_applied), generation FROM eskit_lease.groups").fetchone()
        what = ", ".join(f"{count} {event}" for event, count in sorted(counts.items()))
        return f"{applied} payments in {generation} generations; {what}"
