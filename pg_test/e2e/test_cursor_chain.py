"""Concurrent transactions under one fence apply the events of one partition: each event once, in order, at every
isolation level.

`make soak` runs the same for longer, by a schedule of another seed."""

import os
import random
import threading
import time

import psycopg
import pytest
from client import Session, call
from conftest import wait_until
from psycopg import IsolationLevel

SEED = os.environ.get("SOAK_SEED", "7")
SECONDS = float(os.environ.get("SOAK_SECONDS", "8")) / 2
# A row for each time that an event was applied, in that order; without a unique key, which would hide events applied
# twice.
TABLE = "CREATE TABLE applied (place bigint GENERATED ALWAYS AS IDENTITY, event bigint)"
APPLY = "INSERT INTO applied (event) SELECT generate_series(%s::bigint + 1, %s)"
# The cursor has been moved, the partition is changing hands, the fence is lost; two transactions are making the
# cursor's row.
REFUSALS = {"40001", "55P03", "LF001"}


class Chain:
    """Two members own the one partition in turn. Four connections apply events under the current fence."""

    def __init__(self, server, db, seed, by):
        self.server, self.db, self.by, self.applied, self.refused, self.failure = server, db, by, 0, 0, None
        self.fence, self.seed, self.until = None, seed, time.monotonic() + SECONDS

    def goes_on(self):
        """For its time, and until transactions have met and been applied, as few are on a slow machine."""
        now = time.monotonic()
        return now < self.until or (not self.refused or self.applied <= SECONDS) and now < self.until + 60

    def apply(self, conn, chance):
        fence = self.fence
        with conn.transaction():
            if self.by != "expected":
                call(conn, "fence_check", "g", fence)
            position = call(conn, "cursor_position", "g", 0)
            to = position + chance.randint(1, 5)
            conn.execute(APPLY, (position, to))
            time.sleep(chance.random() ** 3 * 0.01)
            expected = [position] if self.by == "expected" else []
            moved = call(conn, "cursor_commit", "g", 0, to, fence, *expected)
            if not moved:  # another transaction has moved the cursor: its events are applied
                raise psycopg.Rollback
        self.applied += 1

    def worker(self, number):
        chance = random.Random(f"{self.seed} {number}")
        try:
            with self.server.connect(self.db) as conn:
                conn.isolation_level = IsolationLevel.READ_COMMITTED if self.by == "expected" else IsolationLevel.REPEATABLE_READ
                while self.failure is None and self.goes_on():
                    try:
                        self.apply(conn, chance)
                    except psycopg.Error as error:
                        if error.sqlstate not in REFUSALS:
                            raise
                        self.refused += 1
        except Exception as failure:
            self.failure = failure

    def run(self):
        with self.server.connect(self.db) as conn:
            conn.execute(TABLE)
            call(conn, "group_create", "g", 1)
            members = [Session(conn, f"member {number}", "60 s").join("g") for number in range(2)]

            def owned():
                return [row for member in members for row in member.assignment("g") if row.state == "owned"]

            self.fence = wait_until(owned)[0].fence
            threads = [threading.Thread(target=self.worker, args=(number,)) for number in range(4)]
            for thread in threads:
                thread.start()
            # A new fence now and then, which makes the former one invalid.
            chance = random.Random(self.seed)
            while self.failure is None and self.goes_on():
                time.sleep(chance.uniform(0.1, 0.5))
                call(conn, "group_release", "g", 0, self.fence)
                self.fence = wait_until(owned)[0].fence
            for thread in threads:
                thread.join()
            events = [event for (event,) in conn.execute("SELECT event FROM applied ORDER BY place")]
            cursor = call(conn, "cursor_position", "g", 0)
        assert self.failure is None, self.failure
        print(f"{self.applied} transactions applied {len(events)} events, {self.refused} were refused")
        assert sorted(events) == list(range(1, cursor + 1)), repeated(events)
        assert self.refused, "nothing ever met"
        assert cursor > SECONDS


def repeated(events):
    twice = sorted({event for event in events if events.count(event) > 1})[:10]
    return f"applied twice: {twice}; missing: {sorted(set(range(1, max(events) + 1)) - set(events))[:10]}"


@pytest.mark.flaky(reruns=0)  # what its history proves once is proved
@pytest.mark.parametrize("by", ["expected", "snapshot"])
def test_each_event_is_applied_once(server, db, by):
    Chain(server, db, f"{SEED} {by}", by).run()
