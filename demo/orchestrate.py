"""Runs the demo of competing consumers on the cluster that the environment names: starts them, makes trouble, and
proves the result."""

import os
import signal
import sys
import time

import psycopg

from report import Report
from stage import HERE, Actor, Stage, launch

EVENTS = 24_000  # events at least; the producers go on until the last fault is over
PRODUCERS, EVENTS_PER_SECOND = 3, 2_000
KILL_AT, STOP_AT, RELEASE_AT = 4_000, 9_000, 18_000  # once so many events are applied
SHARE = 500  # events at least that a leader applies
CONSUMERS = 4


class Reign:
    """The time in which one consumer leads, under one fence."""

    def __init__(self, consumer, fence, since):
        self.consumer, self.fence, self.since = consumer, fence, since
        self.until = self.fault = None
        self.applied = 0


class Demo(Stage):
    def __init__(self):
        super().__init__()
        self.db = psycopg.connect(autocommit=True)
        self.db.execute((HERE / "schema.sql").read_text())
        os.environ["PGUSER"] = "shop"  # the other processes connect as an ordinary user
        self.reigns = []
        self.report = Report(self.db)

    # ---- watching ----

    def heard(self, consumer, line):
        event, at = line["event"], line["at"]
        if event == "leading" and not any(reign.fence == line["fence"] for reign in self.reigns):
            self.reigns.append(Reign(consumer, line["fence"], at))
            self.report.live(at, f"{consumer.name} leads under fence {line['fence']}")
        elif event == "applied":
            next(reign for reign in self.reigns if reign.fence == line["fence"]).applied += line["events"]
        elif event in ("lost", "refused", "released"):
            for reign in self.reigns:
                if reign.consumer is consumer and reign.until is None:
                    reign.until, reign.fault = at, reign.fault or ("lost", at)
        elif event == "failed":
            self.report.live(at, f"{consumer.name} failed: {line['message']}")

    def one(self, sql, *params):
        return self.db.execute(sql, params).fetchone()

    # ---- the story ----

    def start(self):
        share = [str(EVENTS // PRODUCERS), str(EVENTS_PER_SECOND // PRODUCERS)]
        self.producers = [launch("producer.py", *share) for _ in range(PRODUCERS)]
        self.others += self.producers
        self.report.live(time.time(), f"{PRODUCERS} producers start: about {EVENTS_PER_SECOND:,} orders a second in small transactions")
        for number in range(1, CONSUMERS + 1):
            consumer = Actor(self, "consumer.py", f"consumer-{number}")
            self.until(f"{consumer.name} leads or waits", lambda: consumer.said("leading") or consumer.said("waiting"))
        self.report.live(time.time(), "all others wait in line: " + ", ".join(
            name for (name,) in self.db.execute("SELECT consumer FROM eskit_lease.waiters ORDER BY position")))

    def leader_at(self, applied):
        """Waits until so many events are applied and the leader has applied its share; returns the leader's reign."""
        def reached():
            total, now = sum(reign.applied for reign in self.reigns), self.reigns[-1]
            return now if total >= applied and now.applied >= SHARE and now.until is None else None

        return self.until(f"{applied} events are applied", reached)

    def successor(self, of):
        return self.until(f"a consumer follows {of.consumer.name}", lambda: next(
            (reign for reign in self.reigns if reign.fence > of.fence), None))

    def kill(self):
        reign = self.leader_at(KILL_AT)
        reign.until = time.time()
        reign.fault = ("killed", reign.until)
        reign.consumer.signal(signal.SIGKILL)
        self.report.live(reign.until, f"{reign.consumer.name} is killed (SIGKILL)")
        self.successor(reign)
        reign.consumer.process.wait()

    def freeze(self):
        """Stops the leader in the middle of a batch, wakes it when another leads, and returns the answer to its
        write."""
        for _ in range(5):  # if a leader loses its lease just before, or notices in time, the next leader serves as well
            reign = self.leader_at(STOP_AT)
            zombie, stopped = reign.consumer, self.stop_in_mid_batch(reign)
            if not stopped:
                continue
            self.report.live(stopped, f"{zombie.name} is stopped (SIGSTOP) with a batch in its hands, not yet written")
            (reign.until,) = self.one(
                "SELECT extract(epoch FROM s.expires_at)::float8 FROM eskit_lease.sessions s"
                " JOIN eskit_lease.leases l USING (session) WHERE l.fence = %s", reign.fence)
            reign.fault = ("stopped", reign.until, stopped)
            heir = self.successor(reign)
            self.until(f"{heir.consumer.name} is well on its way", lambda: heir.applied >= SHARE)
            woken = time.time()
            zombie.signal(signal.SIGCONT)
            self.report.live(woken, f"{zombie.name} is resumed (SIGCONT) and goes on where it was")
            self.until(f"{zombie.name} is back in line", lambda: zombie.said("waiting", woken))
            refused = zombie.said("refused", woken)
            if refused:
                self.report.live(refused["at"], f"{zombie.name} is refused by its fence, and goes to the end of the line")
            if refused or zombie.said("applied", woken):
                return reign, heir, refused, woken - stopped
        raise RuntimeError("no leader was to be stopped in the middle of a batch")

    def stop_in_mid_batch(self, reign):
        """A leader that is stopped in the middle of a transaction keeps its lease until that ends, as it must. To
        become a zombie, it is stopped after its log says that it has read a batch, and before the server says that it
        writes."""
        zombie = reign.consumer
        while reign is self.reigns[-1] and reign.until is None:
            self.until(f"{zombie.name} has read a batch", lambda: zombie.last() == "read" or reign.until)
            stopped = time.time()
            zombie.signal(signal.SIGSTOP)
            os.waitid(os.P_PID, zombie.process.pid, os.WSTOPPED)
            self.pump(0)  # the pipe now has all that the leader has logged
            at = self.one("SELECT state, query FROM pg_stat_activity WHERE application_name = %s", zombie.name)
            if zombie.last() == "read" and at and at[0] == "idle" and "FROM order_events" in at[1]:
                return stopped
            zombie.signal(signal.SIGCONT)
            self.until(f"{zombie.name} goes on", lambda: zombie.last() != "read" or reign.until)
        return None

    def release(self):
        reign = self.leader_at(RELEASE_AT)
        asked = time.time()
        reign.fault = ("released", asked)
        reign.consumer.signal(signal.SIGTERM)
        self.report.live(asked, f"{reign.consumer.name} is asked to stop (SIGTERM)")
        self.successor(reign)
        self.ended(reign.consumer)

    def drain(self):
        for producer in self.producers:
            producer.send_signal(signal.SIGTERM)
        self.until("the producers end", lambda: all(producer.poll() is not None for producer in self.producers))
        if any(producer.returncode for producer in self.producers):
            raise RuntimeError(f"the producers ended with {[producer.returncode for producer in self.producers]}")
        last, count = self.one("SELECT max(position), count(*) FROM order_events")
        self.report.live(time.time(), f"the producers have ended; they have written {count:,} events")
        self.until("all is applied", lambda: self.one("SELECT position FROM checkpoints") == (last,))
        drained = time.time()
        self.report.live(drained, "the stream is drained")
        self.reigns[-1].until, self.reigns[-1].fault = drained, ("drained", drained)
        living = [consumer for consumer in self.actors if consumer.running()]
        for consumer in sorted(living, key=lambda consumer: consumer is self.reigns[-1].consumer):
            consumer.signal(signal.SIGTERM)
            self.ended(consumer)

    def run(self):
        self.start()
        self.kill()
        zombie = self.freeze()
        self.release()
        self.drain()
        return self.report.print(self.reigns, *zombie)


demo = Demo()
try:
    proven = demo.run()
except KeyboardInterrupt:
    proven = False
except (TimeoutError, RuntimeError) as error:
    proven = False
    print(f"demo: {error}", file=sys.stderr)
finally:
    demo.end()
sys.exit(0 if proven else 1)
