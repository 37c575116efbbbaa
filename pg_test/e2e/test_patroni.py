"""Consumers go on while Patroni fails over.

Its leader is killed, stopped for longer than Patroni's ttl and continued, cut off from all except a client on its own
host, and switched over."""

import contextlib
import signal
import threading
import time
import warnings

import psycopg
import pytest
import stack
from client import Session, call
from conftest import caught_up, once, wait_until
from load import NOTE, TABLES, TIMELINE, Load

TTL = 10  # longer than a failover takes


@pytest.fixture
def patroni(tmp_path, request):
    if stack.missing():
        warnings.warn("Patroni, etcd and HAProxy are not here, and failovers under Patroni are not tested", stacklevel=2)
        pytest.skip("no Patroni, etcd and HAProxy")
    running = stack.Stack(tmp_path, **request.param)
    yield running
    running.stop()


class Zombie(threading.Thread):
    """A consumer on the leader's own host that knows nothing of failovers: it sends heartbeats until the leader is
    stopped, and works when the test says so."""

    def __init__(self, leader, name):
        super().__init__(daemon=True)
        self.name, self.lease = name, f"of the {name}"
        self.conn, self.other_conn = leader.connect(), leader.connect()
        self.session = Session(self.conn, self.name, ttl="2 s")
        self.fence = self.greatest_fence = self.session.take(self.lease)
        self.works, self.reason, self.trusted_until = 0, None, 0
        wait_until(self.trusted)
        self.work()
        self.start()

    def trusted(self):
        """Heartbeats, and returns the trust in its answer. `trusted_until` is the latest time that any answer has
        vouched for."""
        answer = self.session.heartbeat()
        self.reason = answer.alive and answer.reason
        if answer.trust_ms:
            self.trusted_until = self.session.deadline
        return answer.trust_ms

    def run(self):
        with contextlib.suppress(psycopg.Error):
            while True:
                self.trusted()
                time.sleep(0.01)

    def work(self):
        """Writes under the zombie's lease, and acquires another one."""
        self.works += 1
        tag = f"{self.name} {self.works}"
        with self.other_conn.transaction():
            call(self.other_conn, "fence_check", self.lease, self.fence)
            self.other_conn.execute(NOTE, ("lease", self.lease, self.fence, self.session.id, tag))
        answer = call(self.other_conn, "lease_acquire", tag, self.session.id)
        self.greatest_fence = answer.fence or self.greatest_fence


@contextlib.contextmanager
def heir(leader, zombie):
    """Acquires the zombie's lease for the time of a `with`. Checks that the zombie no longer has it."""
    with leader.connect() as conn:
        heir = Session(conn, "heir", ttl="1 h")  # if commits wait for a standby, the answer may come late
        wait_until(lambda: heir.heartbeat().alive and heir.acquire(zombie.lease).granted, pause=0.05)
        yield
        assert heir.fences[zombie.lease] > zombie.greatest_fence
        with pytest.raises(psycopg.Error) as lost:
            call(conn, "fence_check", zombie.lease, zombie.fence)
        assert lost.value.sqlstate == "LF001"
        heir.close()


# ---- faults: each waits until the other node leads, and returns what heals it ----


def kill(patroni, leader, follower, *_):
    leader.kill()
    wait_until(lambda: patroni.leads(follower), timeout=60)
    return leader.start


def stop(patroni, leader, follower, *_):
    """Stops the leader and its Patroni until the other node leads. Then continues PostgreSQL first, which is the worst
    order."""
    zombie = Zombie(leader, "stop")
    caught_up(leader, follower)
    leader.patroni.signal(signal.SIGSTOP)
    leader.signal(signal.SIGSTOP)
    wait_until(lambda: patroni.leads(follower), timeout=60)

    def heal():
        with heir(follower, zombie):
            leader.signal(signal.SIGCONT)
            with contextlib.suppress(psycopg.Error):  # the old leader may accept the write, which is then lost
                zombie.work()
        leader.patroni.signal(signal.SIGCONT)
        zombie.join()

    return heal


def cut_off(patroni, leader, follower, load, background):
    """Cuts the leader's host off from etcd, HAProxy and the other node, but not from the zombie there. An asynchronous
    standby is cut off first, and lags. With a synchronous standby the leader's Patroni is stopped as well: then
    PostgreSQL runs on until the network is mended, and only its own answers protect clients."""
    zombie = Zombie(leader, "cut_off")
    caught_up(leader, follower)
    if patroni.synchronous:
        leader.patroni.signal(signal.SIGSTOP)
    else:
        for link in patroni.between_nodes():
            link.cut()
        load.works(writes=10)
    for link in patroni.around(leader):
        link.cut()
    work = background(zombie.work)
    wait_until(lambda: patroni.leads(follower), timeout=60)

    def inherit():
        with heir(follower, zombie):
            return time.monotonic()

    def heal():
        inherited = background(inherit)
        if not patroni.strict:  # without a standby no grant is committed
            inherited.result()
        if patroni.synchronous:
            wait_until(lambda: zombie.reason == "unconfirmed")
            assert zombie.is_alive() and not work.done()
        else:
            work.result()
            zombie.join()  # Patroni has stopped the old leader
        for link in patroni.around(leader):
            link.mend()
        leader.patroni.signal(signal.SIGCONT)
        inherited_at = inherited.result()
        if patroni.synchronous:
            assert zombie.trusted_until < inherited_at
            assert isinstance(work.exception(), psycopg.Error)
            zombie.join()

    return heal


def switch_over(patroni, leader, follower, *_):
    patroni.patronictl("switchover", "eskit", "--leader", leader.name, "--candidate", follower.name, "--force")
    return lambda: None


@once
@pytest.mark.parametrize(
    ("patroni", "faults"),
    [
        pytest.param({}, (kill, stop, cut_off, switch_over), id="asynchronous"),
        pytest.param({"synchronous_mode": True}, (kill, cut_off, switch_over), id="synchronous"),
        pytest.param({"synchronous_mode": True, "synchronous_mode_strict": True}, (cut_off,), id="strict"),
    ],
    indirect=["patroni"],
)
def test_failovers_under_load(background, patroni, faults):  # fixtures in this order: background calls end with the servers
    leader, follower = patroni.pair()
    leader.query(TABLES)
    wait_until(lambda: reaches(patroni, 1))
    since, lost_from, took = {}, {}, {}
    with Load(patroni, ttl=TTL, each=6) as load:
        for timeline, fault in enumerate(faults, start=2):
            load.works(timeline=timeline - 1, writes=10)
            if not patroni.synchronous and fault is not switch_over:
                lost_from[timeline - 1] = time.monotonic()
                caught_up(leader, follower)
            since[timeline] = time.monotonic()
            heal = fault(patroni, leader, follower, load, background)
            if patroni.strict:  # without a standby nothing is committed
                heal()
            load.works(timeline=timeline, writes=1)
            took[fault.__name__] = round(time.monotonic() - since[timeline], 1)
            load.works(timeline=timeline, writes=10)
            if not patroni.strict:
                heal()
            new, leader = leader, follower
            assert patroni.pair() == (leader, new)
            follower = new
        with leader.connect() as conn:
            load.end(conn)
            lost = load.check(conn, since, lost_from)
            of_zombies = conn.execute("SELECT tag FROM journal WHERE name LIKE 'of the %' ORDER BY place").fetchall()
            assert of_zombies == [(f"{fault.__name__} 1",) for fault in faults if fault in (stop, cut_off)]
    assert bool(lost) != patroni.synchronous
    print(f"{len(load.acknowledged)} writes, {lost} of them lost; seconds until all had written on the new leader: {took}")


def reaches(patroni, timeline):
    """Returns whether HAProxy lets connections through to the leader."""
    try:
        with patroni.connect() as conn:
            return conn.execute(TIMELINE).fetchone() == (timeline,)
    except psycopg.OperationalError:
        return False
