"""A primary fails over to its standby while consumers work: because it dies, because it is cut off and goes on, or on
purpose."""

import contextlib
import os
import signal
import time

import psycopg
import pytest
from client import Session
from conftest import Server, caught_up, cut_off, follow, once, promote, standby_of, wait_until
from load import TABLES, Either, Load

TTL = 6


@pytest.fixture
def primary():
    server = Server("e2e-failing")
    server.query(TABLES)
    yield server
    server.stop("immediate")


@pytest.fixture
def standby(primary):
    server = standby_of(primary, "e2e-following")
    yield server
    server.stop("immediate")


class Idle:
    """Sessions without heartbeats: `late` comes back late, `lost` never, and `heir` waits for the lease of `lost`."""

    def __init__(self, server):
        with server.connect() as conn:
            self.late, self.lost, self.heir = (Session(conn, name, ttl=f"{TTL} s") for name in ("late", "lost", "heir"))
            self.fence = max(self.late.take("of late"), self.lost.take("of lost"))
            self.heir.queue("of lost")

    def live_their_full_ttl(self, server, since):
        """Checks that the sessions live for their full TTL, counted from `since` at the earliest."""
        with server.connect() as conn:
            for session in (self.late, self.lost, self.heir):
                session.conn = conn
            assert self.heir.heartbeat().alive
            wait_until(lambda: time.monotonic() > since + TTL / 2, pause=0.05)
            assert self.late.heartbeat().alive
            assert self.late.acquire("of late").reason == "refenced"
            wait_until(lambda: self.heir.heartbeat().alive and self.heir.holds("of lost"), pause=0.02)
            assert time.monotonic() > since + TTL
            assert min(self.heir.fences["of lost"], self.late.fences["of late"]) > self.fence
            assert self.lost.heartbeat().reason in ("expired", "unknown_session")
            assert self.late.close() and self.heir.close()


def killed(primary, standby):
    """Ends all processes at once: those of connections would answer a little longer than the first one lives."""
    for pid in [primary.pid, *(pid for (pid,) in primary.query("SELECT pid FROM pg_stat_activity"))]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def isolated(primary, standby):
    standby.query("SELECT pg_wal_replay_resume()")  # while replay is paused, the standby stays connected to its primary
    cut_off(standby)


@pytest.mark.parametrize(
    ("synchronous", "how"),
    [
        pytest.param(False, killed, id="asynchronous-killed"),
        pytest.param(False, isolated, id="asynchronous-isolated", marks=once),
        pytest.param(True, killed, id="synchronous-killed", marks=once),
        pytest.param(True, isolated, id="synchronous-isolated"),
    ],
)
def test_failover(primary, standby, background, synchronous, how):
    here, there = Either(primary, standby, name="here"), Either(standby, primary, name="there")
    if synchronous:
        primary.set(synchronous_standby_names="*")
        wait_until(lambda: primary.query("SELECT sync_state FROM pg_stat_replication") == [("sync",)])
    idle = Idle(primary)
    with Load(here, there, ttl=TTL) as load:
        load.works()
        caught_up(primary, standby)
        # The standby lags from now on. WAL that it has not received is lost; WAL that it has received but not replayed
        # is not.
        lost_from = {} if synchronous else {1: time.monotonic()}
        standby.query("SELECT pg_wal_replay_pause()") if synchronous else cut_off(standby)
        load.works(writes=20)
        how(primary, standby)
        promoted_at = time.monotonic()
        promote(standby)
        lived = background(idle.live_their_full_ttl, standby, promoted_at)
        if how is isolated:  # the clients of the new primary reconnect to it; the others notice nothing
            primary.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'there'")
            load.works(timeline=2, server=there)
            if not synchronous:
                load.works(timeline=1, server=here)
        lived.result()
        if how is isolated:
            primary.stop("immediate")
        load.works(timeline=2)
        behind = [told for told in load.history if told.timeline == 1 and told.asked_at > promoted_at]
        granted = any(told.verb == "lease_acquire" and told.answer[0].reason == "granted" for told in behind)
        assert granted == (how is isolated and not synchronous)
        with standby.connect() as conn:
            load.end(conn)
            lost = load.check(conn, {2: promoted_at}, lost_from)
    print(f"{len(load.acknowledged)} writes, {lost} of them lost with the old primary")
    assert synchronous or lost > 0, "it did not lag"


@once
def test_switch_over_and_back(primary, standby):
    servers, since = Either(primary, standby, name="consumer"), {}
    idle = Idle(primary)
    with Load(servers, ttl=TTL, each=6) as load:
        for timeline, (old, new) in enumerate([(primary, standby), (standby, primary)], start=2):
            load.works(timeline=timeline - 1)
            old.stop()  # waits until the standby has all WAL
            since[timeline] = time.monotonic()
            promote(new)
            load.works(timeline=timeline)
            if timeline == 2:
                idle.live_their_full_ttl(new, since[timeline])
            follow(old, new)
            wait_until(lambda: new.query("SELECT state FROM pg_stat_replication") == [("streaming",)])  # noqa: B023
            with pytest.raises(psycopg.Error) as refused, old.connect() as conn:
                Session(conn, "on a standby")
            assert refused.value.sqlstate == "25006"
        with primary.connect() as conn:
            load.end(conn)
            load.check(conn, since, lost_from={})
