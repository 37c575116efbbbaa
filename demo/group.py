"""The demo of a group, on the cluster that orchestrate.py has set up: members join, share 64 partitions, die and leave.

A picture has a letter for each partition: its owner's (in lower case while the owner must release it), x if the owner
is dead, and a dot if it has no owner.
"""

import os
import signal
import sys
import time
from statistics import median

import psycopg

from group_proof import contradictions
from report import heading, paint
from stage import HERE, Actor, Stage

PARTITIONS = 64
SHARE = 200  # payments at least that are applied between one event and the next
PICTURE = """SELECT string_agg(CASE state WHEN 'free' THEN '.' WHEN 'expired' THEN 'x'
                                          WHEN 'revoking' THEN lower(right(p.owner, 1))
                                          ELSE right(p.owner, 1) END, '' ORDER BY partition),
                    max(generation)
             FROM eskit_lease.group_partitions p JOIN eskit_lease.groups USING (group_name)
             WHERE group_name = 'payments'"""


class Group(Stage):
    def __init__(self):
        super().__init__()
        self.db = psycopg.connect(autocommit=True)
        self.db.execute((HERE / "group.sql").read_text())
        self.db.execute("GRANT SELECT, INSERT, UPDATE ON payments, payment_heads, payments_applied, payment_turns TO shop")
        os.environ["PGUSER"] = "shop"
        self.started, self.applied, self.picture, self.drawn_at = time.time(), 0, None, 0
        self.owners = {}  # partition: the member that knows that it owns it
        self.gained, self.freed = {}, {}  # partition: the time, since the last event
        heading(f"A group: {PARTITIONS} partitions, payments in the order of each account, TTL 2 s")

    def live(self, text, at=None, code=None):
        print(f"{(at or time.time()) - self.started:7.2f} s  {paint(code, text) if code else text}", flush=True)

    def heard(self, member, line):
        match line["event"]:
            case "applied":
                first, last = line["positions"]
                self.applied += last - first + 1
            case "released":
                self.freed[line["partition"]] = line["asked_at"]
            case "assigned":
                for partition in map(int, line["gained"]):
                    self.owners[partition], self.gained[partition] = member, line["at"]
            case "lost" | "refused" | "failed":  # no part of the story, but it happens on a machine that is too busy
                self.live(f"{member.name}: {line}", line["at"])
                self.freed |= {partition: line["at"] for partition, owner in self.owners.items() if owner is member}

    def draw(self, at_once=False):
        picture, generation = self.db.execute(PICTURE).fetchone()
        if picture != self.picture and (at_once or time.monotonic() - self.drawn_at > 0.1):
            self.picture, self.drawn_at = picture, time.monotonic()
            self.live(f"{picture}  generation {generation}")
        return picture

    def settle(self, since, *members):
        """Waits until these members share all partitions and know it, and prints how long that took after an event."""
        def settled():
            picture = self.draw()
            shares = [list(self.owners.values()).count(member) for member in members]
            told = self.gained.keys() <= self.freed.keys()
            return told and picture.isupper() and sum(shares) == PARTITIONS and max(shares) - min(shares) <= 1

        self.until(f"shared by {', '.join(member.name for member in members)}", settled)
        self.draw(at_once=True)
        gaps = [(at - self.freed[partition]) * 1000 for partition, at in self.gained.items()]
        took = (max(self.gained.values()) - since) * 1000
        self.live(f"{len(gaps)} partitions have moved within {took:.0f} ms; "
                  f"from one owner to the next: {median(gaps):.1f} ms (median), {max(gaps):.1f} ms at most")
        self.gained, self.freed = {}, {}
        enough = self.applied + SHARE
        self.until("some more is applied", lambda: self.applied >= enough)

    def event(self, text, code, at=None, freed=()):
        at = at or time.time()
        self.live(text, at, code)
        self.freed |= dict.fromkeys(freed, at)
        return at

    def join(self, name, *others):
        member = Actor(self, "member.py", name, "--attach")
        joined = self.until(f"{name} joins", lambda: member.said("joined"))
        at = self.event(f"{name} joins", "32", joined["at"], freed=() if others else range(PARTITIONS))
        self.settle(at, member, *others)
        return member

    # ---- the story ----

    def run(self):
        producer = Actor(self, "payments.py", "producer", "1000")
        a = self.join("member-A")
        b = self.join("member-B", a)
        c = self.join("member-C", b, a)
        b.signal(signal.SIGKILL)
        orphans = [partition for partition, owner in self.owners.items() if owner is b]
        self.settle(self.event("member-B is killed (SIGKILL)", "31", freed=orphans), a, c)
        a.signal(signal.SIGTERM)
        self.settle(self.event("member-A is asked to stop (SIGTERM), and drains", "36"), c)
        self.ended(a)
        producer.signal(signal.SIGTERM)
        self.ended(producer)
        self.until("all is applied", lambda: self.one("SELECT count(*) FROM eskit_lease.group_lag WHERE lag > 0") == 0)
        c.signal(signal.SIGTERM)
        self.ended(c)
        self.until("nothing is owned", lambda: self.draw() == "." * PARTITIONS)
        self.draw(at_once=True)
        return self.proofs()

    def one(self, sql):
        return self.db.execute(sql).fetchone()[0]

    def proofs(self):
        heading("The proof")
        written, applied = (self.one(f"SELECT count(*) FROM {table}") for table in ("payments", "payments_applied"))
        results = [("payments written", written, written >= 5 * SHARE), ("payments applied", applied, applied == written)]
        results += [(what, len(rows), not rows) for what, rows in contradictions(self.db)]
        for what, count, holds in results:
            print(f"{what:32} {count:>15,}  {paint('32', 'ok') if holds else paint('31', 'WRONG')}")
        proven = all(holds for _, _, holds in results)
        took = f"{time.time() - self.started:.1f} s"
        done = f"Every payment was applied exactly once, and each account's in order. {took}"
        print("\n" + (paint("1;32", done) if proven else paint("1;31", "NOT PROVEN")))
        return proven


group = Group()
try:
    proven = group.run()
except KeyboardInterrupt:
    proven = False
except (TimeoutError, RuntimeError) as error:
    proven = False
    print(f"demo: {error}", file=sys.stderr)
finally:
    group.end()
sys.exit(0 if proven else 1)
