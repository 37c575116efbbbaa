"""The wall clock is stepped by an hour, forward and back, while the server runs and across a restart.

No session expires or is extended by it, and fences rise."""

import os
import time
from pathlib import Path

import pytest
from client import Session, call, rows
from conftest import Server, once, wait_until
from faults import LOGS_SQLSTATES, Competition, Log, nothing_left
from psycopg.types.json import Jsonb

pytestmark = once

LIBRARY = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
HOUR = 3600


class Clock:
    """The wall clock of a server, which libfaketime reads from a file. Clocks that no step changes, as the monotonic
    one, stay real."""

    def __init__(self, directory):
        self.file = directory / "clock"
        self.environment = {
            "LD_PRELOAD": str(LIBRARY), "FAKETIME_TIMESTAMP_FILE": str(self.file), "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1", "FAKETIME_DISABLE_SHM": "1",
        }  # fmt: skip
        self.step(0)

    def step(self, seconds):
        """Steps the clock to so many seconds from the true time, at once."""
        changed = self.file.with_suffix(".new")
        changed.write_text(f"{seconds:+d}\n")
        changed.rename(self.file)


class Timed(Server):
    """A server whose wall clock can be stepped."""

    def __init__(self, name, clock, *lines):
        self.clock = clock
        super().__init__(name, *lines)

    def _cluster(self, command, *args):
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.clock.environment.items() if command in ("start", "restart") else ():
                patch.setenv(name, value)
            return super()._cluster(command, *args)


@pytest.fixture(scope="module")
def timed(tmp_path_factory):
    if not LIBRARY:
        pytest.skip("libfaketime is missing: pg_test/setup installs it")
    server = Timed("e2e-clock", Clock(tmp_path_factory.mktemp("clock")), "fsync = on", LOGS_SQLSTATES)
    server.query("CREATE EXTENSION eskit_lease")
    server.query("SELECT eskit_lease.queue_create('q', 20, '2 s')")
    yield server
    server.stop()


@pytest.fixture
def clock(timed):
    log = Log(timed)
    timed.clock.step(0)
    yield timed.clock
    timed.clock.step(0)
    nothing_left(timed)
    log.is_clean()


def away(server):
    """Returns how many seconds the server's clock is from ours."""
    return server.query("SELECT extract(epoch FROM clock_timestamp())::float8")[0][0] - time.time()


def test_the_clock_can_be_stepped(timed, clock):
    """The premises of the other tests."""
    for seconds in (HOUR, -HOUR, 0):
        clock.step(seconds)
        assert abs(away(timed) - seconds) < 30


@pytest.mark.parametrize("seconds", [HOUR, -HOUR])
def test_nobody_expires_and_nobody_is_extended(timed, clock, seconds):
    with timed.connect() as conn, timed.connect() as other, Competition(timed, ttl="3 s") as competition:
        keeps, goes, waiter = Session(conn, "keeps", ttl="3 s"), Session(conn, "goes", ttl="3 s"), Session(other, "waiter", ttl="60 s")
        kept = keeps.take("kept")
        goes.take("left")
        waiter.queue("left")
        goes.heartbeat()  # the last heartbeat
        clock.step(seconds)
        assert abs(away(timed) - seconds) < 30
        assert keeps.heartbeat().alive and 0 < keeps.trust_ms <= 3000
        assert not goes.expired(conn)
        while not waiter.holds("left"):
            assert keeps.heartbeat().alive
            assert time.monotonic() < goes.deadline + 20, "extended"
            time.sleep(0.01)
        assert time.monotonic() > goes.deadline - 0.010
        assert keeps.renew("kept").held and keeps.fences["kept"] == kept
        before = competition.highest_fence()
        competition.go_on(10)
        clock.step(0)
        competition.go_on(10)
        assert keeps.heartbeat().alive and waiter.heartbeat().alive
        assert competition.highest_fence() > before
    competition.prove(timed)
    timed.query("DROP TABLE ledger")


@pytest.mark.parametrize(("seconds", "how"), [(HOUR, "fast"), (-HOUR, "immediate")])
def test_over_a_restart(timed, clock, seconds, how):
    with timed.connect() as conn:
        session, waiter = Session(conn, "holder", ttl="3 s"), Session(conn, "waiter", ttl="60 s")
        session.take("r")
        waiter.queue("r")
        fences = [session.take(f"{how} {seconds} {i}") for i in range(20)]
    clock.step(seconds)
    timed.restart(how)
    started_at = time.monotonic()
    with timed.connect() as conn:
        session.conn = waiter.conn = conn
        assert abs(away(timed) - seconds) < 30
        assert session.heartbeat().alive and session.renew("r").held
        assert Session(conn, "new").take(f"new {how} {seconds}") > max(fences)
        waiter.wait_for("r")
        assert time.monotonic() - started_at > 2, "a TTL after the start"
        assert waiter.fences["r"] > max(fences)


def test_what_is_kept_by_the_clock(timed, clock):
    """A retention and a `run_at` follow the wall clock, so a step changes them.

    Nothing is lost, and a claim finds what is due."""
    with timed.connect() as conn:
        session = Session(conn, "worker", ttl="60 s")
        clock.step(-HOUR)
        fence = session.take("released")
        assert session.release("released")
        (soon,) = conn.execute("SELECT clock_timestamp() + interval '2 s'").fetchone()
        id = call(conn, "item_add", "q", Jsonb("soon"), None, soon)
        assert rows(conn, "item_claim", "q", session.id) == []
        # A step ahead: the item is due for a claim, and for a session that only waits once its call returns.
        clock.step(0)
        session.revision = session.heartbeat().revision
        session.wait()
        (item,) = rows(conn, "item_claim", "q", session.id)
        assert item.id == id
        # A failed item is retried by the wall clock, as it was when the item failed.
        assert call(conn, "item_fail", item.id, item.fence, "failed")
        clock.step(-HOUR)
        assert rows(conn, "item_claim", "q", session.id) == [], "an hour and two seconds from now"
        clock.step(HOUR)
        (again,) = wait_until(lambda: rows(conn, "item_claim", "q", session.id))
        assert again.id == id and again.attempt == 2 and again.fence > item.fence
        assert call(conn, "item_done", [id], again.fence) == 1
        # A released row is kept for a retention of an hour, by the wall clock. The next fence is above the row's fence,
        # whether the row is kept or not.
        call(conn, "session_sweep")
        clock.step(-HOUR)
        call(conn, "session_sweep")
        assert session.take("released") > fence
