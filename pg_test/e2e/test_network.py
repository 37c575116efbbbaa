"""The network between clients and server: links that stall silently, and links that are cut for good. A session beyond
such a link lives until its TTL and no longer, frees its place for a waiting call, and does nothing twice when it is
back."""

import subprocess
import sys
import time

import psycopg
import pytest
from client import Session, call, stat
from conftest import ROOT, Server, once, wait_until
from links import Link
from psycopg.conninfo import make_conninfo

pytestmark = once


@pytest.fixture
def link(server):
    link = Link(server.port)
    yield link
    link.end()


@pytest.mark.parametrize("attach", [True, False])
def test_holder_beyond_a_cut_link(connect, link, attach):
    far, near = connect(link), connect()
    holder, waiter = Session(far, "holder", ttl="2 s", attach=attach), Session(near, "waiter", ttl="60 s")
    holder.take("r")
    waiter.queue("r")
    holder.heartbeat()
    link.cut()
    assert waiter.wait_for("r") > holder.deadline - 0.010
    assert time.monotonic() < holder.deadline + 20
    link.mend()
    assert holder.heartbeat().reason == "expired"
    with pytest.raises(psycopg.Error) as lost:
        holder.check("r")
    assert lost.value.sqlstate == "LF001"
    assert not holder.renew("r").held and not holder.release("r")
    waiter.check("r")


def test_a_fenced_transaction_beyond_a_cut_link_is_let_through(connect, link):
    """The fenced transaction keeps the lease until it ends, however long that takes: no session is granted the lease
    meanwhile, and the commit succeeds."""
    far, near = connect(link, autocommit=False), connect()
    near.execute("CREATE TABLE work (by text)")
    holder, rival = Session(near, "holder", ttl="1 s"), Session(near, "rival", ttl="60 s")
    fence = holder.take("r")
    call(far, "fence_check", "r", fence)
    link.cut()
    wait_until(lambda: holder.expired(near))
    assert rival.acquire("r", queue=True).reason == "queued"
    passes = stat(near, "sweeps")
    wait_until(lambda: stat(near, "sweeps") >= passes + 2)  # the worker has tried
    assert not rival.holds("r")
    link.mend()
    far.execute("INSERT INTO work VALUES ('holder')")
    far.commit()
    wait_until(lambda: rival.holds("r"))
    assert near.execute("SELECT by FROM work").fetchall() == [("holder",)] and rival.fences["r"] > fence


@pytest.mark.parametrize("verb", ["acquire", "commit"])
def test_a_lost_answer_is_asked_for_again(connect, background, link, verb):
    """The server has executed the call, and its answer is lost. The client repeats the call over another connection,
    and nothing is done twice."""
    far, near = connect(link), connect()
    near.execute("CREATE TABLE work (what text PRIMARY KEY)")
    session = Session(far, "client", ttl="60 s")
    fence = session.take("r") if verb == "commit" else None
    link.cut(link.to_client)

    def ask():
        if verb == "acquire":
            session.acquire("r")
        else:
            work = "SELECT eskit_lease.fence_check('r', %d); INSERT INTO work VALUES ('done')" % fence
            far.execute(work)

    asked = background(ask)
    if verb == "acquire":
        wait_until(lambda: near.execute("SELECT FROM eskit_lease.leases WHERE state = 'held'").rowcount)
    else:
        wait_until(lambda: near.execute("SELECT FROM work").rowcount)
    link.end()
    assert isinstance(asked.exception(), psycopg.OperationalError)
    session.conn = connect()
    again = session.acquire("r")
    assert again.reason == "already_held"
    if verb == "commit":
        assert again.fence == fence
        session.check("r")
        done = session.conn.execute("INSERT INTO work VALUES ('done') ON CONFLICT DO NOTHING").rowcount
        assert done == 0
    assert session.release("r")


def test_waiting_calls_beyond_a_cut_link_give_their_places_back(server, connect, background, link):
    """The sockets look alive as long as TCP thinks so. But each wait ends, and frees its place."""
    server.set(eskit_lease__max_waiting=2, eskit_lease__max_wait="1s")
    near = connect()
    try:
        wait_until(lambda: near.execute("SHOW eskit_lease.max_waiting").fetchone() == ("2",))
        lost = [Session(connect(link), f"lost {i}", ttl="60 s") for i in range(2)]
        waits = [background(session.wait) for session in lost]
        wait_until(lambda: stat(near, "calls_waiting") == 2)
        link.cut()
        session = Session(near, "near", ttl="60 s")
        refused_at = time.monotonic()
        assert session.wait().reason == "wait_limit"
        wait_until(lambda: session.wait("10 ms").reason == "timeout")
        assert time.monotonic() - refused_at < 20
        wait_until(lambda: stat(near, "calls_waiting") == 0)
        link.mend()
        assert [wait.result().alive for wait in waits] == [True, True]
    finally:
        server.set(eskit_lease__max_waiting=None, eskit_lease__max_wait=None)


class Isolated(Server):
    """A server in a network namespace of its own, whose loopback device can be taken down; its Unix socket still
    works."""

    def _cluster(self, command, *args):
        inside = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"] if command == "start" else []
        done = subprocess.run([*inside, ROOT / "pg_test/cluster", command, self.name, *args], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def inside(self, *command):
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", *command]


CHILD = """
import sys, psycopg
conn = psycopg.connect(sys.argv[1], autocommit=True, prepare_threshold=None)
session, revision = conn.execute("SELECT session, revision FROM eskit_lease.session_open('child', '600 s', true)").fetchone()
assert conn.execute("SELECT granted FROM eskit_lease.lease_acquire(%s, %s)", (sys.argv[2], session)).fetchone()[0]
print(session, flush=True)
while sys.argv[3] == "waits":
    (revision,) = conn.execute("SELECT revision FROM eskit_lease.session_wait(%s, %s)", (session, revision)).fetchone()
sys.stdin.read()
"""


@pytest.fixture
def isolated():
    possible = subprocess.run(["unshare", "--net", "ip", "link", "set", "lo", "up"], capture_output=True)
    if possible.returncode != 0:
        pytest.skip("network namespaces are forbidden here")
    server = Isolated(
        "e2e-isolated", "tcp_keepalives_idle = 1", "tcp_keepalives_interval = 1", "tcp_keepalives_count = 2",
        "tcp_user_timeout = '2s'", "eskit_lease.max_wait = '60s'",
    )  # fmt: skip
    server.query("CREATE EXTENSION eskit_lease")
    yield server
    server.stop()


def test_attached_sessions_end_when_keepalives_find_the_link_dead(isolated):
    """With TCP keepalives the system ends a connection over a dead link, waiting or idle, and so its attached session,
    long before the TTL."""
    children = []
    try:
        for resource, does in (("of the idle", "idles"), ("of the waiting", "waits")):
            dsn = make_conninfo(host="127.0.0.1", port=isolated.port, user="postgres", dbname="postgres")
            command = isolated.inside(sys.executable, "-c", CHILD, dsn, resource, does)
            child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            children.append(child)
            child.stdout.readline()
        with isolated.connect() as conn:
            wait_until(lambda: stat(conn, "calls_waiting") == 1)
            heir = Session(conn, "heir", ttl="600 s").queue("of the idle").queue("of the waiting")
            subprocess.run(isolated.inside("ip", "link", "set", "lo", "down"), check=True)
            cut_at = time.monotonic()
            wait_until(lambda: heir.holds("of the idle") and heir.holds("of the waiting"), timeout=100, pause=0.05)
            print(f"after {time.monotonic() - cut_at:.1f} s")
            assert stat(conn, "calls_waiting") == 0
            assert stat(conn, "sessions_alive") == 1
    finally:
        for child in children:
            child.kill()
            child.wait()
