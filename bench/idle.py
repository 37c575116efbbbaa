"""What the launcher and the workers use while they have nothing to do.

First there are a hundred thousand sessions with a long TTL, then also sessions that live by heartbeats. Each heartbeat
moves a deadline that the worker watches."""

import threading
import time

from cluster import cluster
from cost import Workers
from crowd import BATCH, enlist
from harness import number, one

SESSIONS = number("BENCH_IDLE_SESSIONS", 100_000)
BEATING = number("BENCH_IDLE_BEATING", 20_000)
SECONDS = number("BENCH_IDLE_SECONDS", 30)
TTL = 60  # seconds, of the sessions with heartbeats: one is due every third of it
REST = 5  # seconds, for work that the set-up has caused
# The share of a processor that is too little to notice.
IDLE = 0.001


def idle(report):
    with cluster("idle", f"eskit_lease.max_sessions = {SESSIONS + BEATING + 1_000}", "max_locks_per_transaction = 256") as server:
        with server.connect() as db, server.connect() as other:
            watch = Watch(report, other)
            watch.stage("no session", IDLE)
            opened = 0
            for population in sorted({SESSIONS // 100, SESSIONS // 10, SESSIONS}):
                while opened < population:
                    more = min(BATCH, population - opened)
                    enlist(db, "asleep", "asleep-", opened + 1, opened + more, 3_600)
                    opened += more
                watch.stage(f"{population:,} sessions", IDLE)
            for low in range(1, BEATING + 1, BATCH):
                enlist(db, "beating", "beating-", low, min(low + BATCH - 1, BEATING), TTL)
            stop = threading.Event()
            heart = threading.Thread(target=beat, args=(server, stop))
            heart.start()
            try:
                # The processes' work for these sessions is no part of idling.
                watch.stage(f"and {BEATING:,} of {TTL} s that are kept alive", None)
            finally:
                stop.set()
                heart.join()
            alive = one(db, "SELECT value FROM eskit_lease.stats() WHERE name = 'sessions_alive'")
            report.check("sessions alive in the end", f"{alive:,}", f"{opened + BEATING:,}", alive == opened + BEATING)
        data = {"launcher and workers": [[n, [value]] for n, value in zip([0, SESSIONS // 100, SESSIONS // 10, SESSIONS], watch.shares)]}
        report.chart("idle", "lines", "Processor time while nothing happens", "live sessions", "% of a processor", data)


class Watch:
    def __init__(self, report, db):
        self.report, self.workers, self.shares = report, Workers(db), []

    def stage(self, what, bound):
        """Reads the processes' times once before and once after, so reading disturbs none of them."""
        time.sleep(REST)
        spent, wakes, began = self.workers.milliseconds(), self.workers.wakes(), time.monotonic()
        time.sleep(SECONDS)
        spent, wakes, took = self.workers.milliseconds() - spent, self.workers.wakes() - wakes, time.monotonic() - began
        share = spent / 1e3 / took
        if bound is not None:
            self.shares.append(round(share * 100, 4))
        # While there are sessions the launcher wakes each second, to notice it if the machine was paused.
        self.report.add(f"launcher and workers: {what}", f"{share:.3%} of a processor", f"{wakes / took:.2f} wake-ups/s, {spent / max(wakes, 1):.3f} ms each", "",
                        f"< {bound:.1%}" if bound else "", share < bound and wakes / took < 3 if bound else None)  # fmt: skip


def beat(server, stop):
    """Sends each session three heartbeats in a TTL, 100 sessions at a time."""
    with server.connect() as db:
        rounds = 0
        began = time.monotonic()
        while not stop.is_set():
            for low in range(1, BEATING + 1, 100):
                db.execute("SELECT count(*) FROM beating AS b, eskit_lease.session_heartbeat(b.session) AS h WHERE n BETWEEN %s AND %s", (low, low + 99), prepare=True)
                due = began + (rounds + low / BEATING) * TTL / 3
                if stop.wait(max(0, due - time.monotonic())):
                    return
            rounds += 1
