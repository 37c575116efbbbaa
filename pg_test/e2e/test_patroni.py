"""Consumers go on while Patroni fails over: its leader is killed, stopped for longer than it is believed and continued, and switched over."""

import contextlib
import signal
import time
import warnings

import psycopg
import pytest
import stack
from client import Session, call
from conftest import caught_up, once, wait_until
from load import NOTE, TABLES, TIMELINE, Load

TTL = 10  # longer than it takes to fail over


@pytest.fixture
def patroni(tmp_path):
    if stack.missing():
        warnings.warn("Patroni, etcd and HAProxy are not here, and failovers under Patroni are not tested", stacklevel=2)
        pytest.skip("no Patroni, etcd and HAProxy")
    running = stack.Stack(tmp_path)
    yield running
    running.stop()


class Zombie:
    """A consumer that has the leader's own address, and does not hear of failovers."""

    def __init__(self, leader):
        self.conn = leader.connect()
        self.session = Session(self.conn, "zombie", ttl=f"{TTL} s")
        self.session.take("of the zombie")
        self.written = 0
        self.write()

    def write(self):
        with self.conn.transaction():
            self.session.check("of the zombie")
            self.written += 1
            self.conn.execute(NOTE, ("lease", "of the zombie", self.session.fences["of the zombie"], self.session.id, f"zombie {self.written}"))


def kill(patroni, leader, follower):
    leader.kill()
    wait_until(lambda: patroni.leads(follower), timeout=60)
    return leader.start


def stop(patroni, leader, follower):
    """Stopped, and with it its Patroni, until the other leads; and then PostgreSQL is continued first, as nobody would wish."""
    zombie = Zombie(leader)
    caught_up(leader, follower)
    leader.patroni.signal(signal.SIGSTOP)
    leader.signal(signal.SIGSTOP)
    wait_until(lambda: patroni.leads(follower), timeout=60)

    def heal():
        with follower.connect() as conn:
            heir = Session(conn, "heir", ttl=f"{TTL} s")
            wait_until(lambda: heir.heartbeat().alive and heir.acquire("of the zombie").granted, pause=0.1)
            leader.signal(signal.SIGCONT)
            with contextlib.suppress(psycopg.Error):  # where it is it may be let; what it writes there is lost
                zombie.write()
            with pytest.raises(psycopg.Error) as lost:
                call(conn, "fence_check", "of the zombie", zombie.session.fences["of the zombie"])
            assert lost.value.sqlstate == "LF001"
            heir.close()
        zombie.conn.close()
        leader.patroni.signal(signal.SIGCONT)

    return heal


def switch_over(patroni, leader, follower):
    patroni.patronictl("switchover", "eskit", "--leader", leader.name, "--candidate", follower.name, "--force")
    return lambda: None


@once
def test_failovers_under_load(patroni):
    leader, follower = patroni.pair()
    leader.query(TABLES)
    wait_until(lambda: reaches(patroni, 1))
    since, lost_from, took = {}, {}, {}
    with Load(patroni, ttl=TTL, each=6) as load:
        for timeline, fault in enumerate((kill, stop, switch_over), start=2):
            load.works(timeline=timeline - 1, writes=10)
            if fault is not switch_over:
                lost_from[timeline - 1] = time.monotonic()
                caught_up(leader, follower)
            since[timeline] = time.monotonic()
            heal = fault(patroni, leader, follower)
            load.works(timeline=timeline, writes=1)
            took[fault.__name__] = round(time.monotonic() - since[timeline], 1)
            load.works(timeline=timeline, writes=10)
            heal()
            new, leader = leader, follower
            assert patroni.pair() == (leader, new)
            follower = new
        with leader.connect() as conn:
            load.end(conn)
            lost = load.check(conn, since, lost_from)
            assert conn.execute("SELECT tag FROM journal WHERE name = 'of the zombie'").fetchall() == [("zombie 1",)]
    print(f"{len(load.acknowledged)} writes, {lost} of them lost; seconds until all had written on the new leader: {took}")


def reaches(patroni, timeline):
    """Whether HAProxy lets through to the leader."""
    try:
        with patroni.connect() as conn:
            return conn.execute(TIMELINE).fetchone() == (timeline,)
    except psycopg.OperationalError:
        return False
