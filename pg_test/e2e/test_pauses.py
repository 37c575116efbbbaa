"""Time stands still: for the launcher alone, and then no session gets time back; or for the whole server, and then no
session expires because of it."""

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest
from client import Session
from conftest import Server, once, wait_until

pytestmark = once
PAUSED = "the machine was paused"


@pytest.fixture(scope="module")
def paused():
    server = Server("e2e-paused")
    server.query("CREATE EXTENSION eskit_lease")
    yield server
    server.stop()


def children():
    """Returns the process ids of each process's children."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rsplit(")", 1)[1].split()[1])
            found.setdefault(parent, []).append(int(stat.parent.name))
    return found


def below(pid):
    """Returns the process and all its descendants."""
    known = children()
    found = [pid]
    for parent in found:
        found.extend(known.get(parent, []))
    return found


def gone(pid):
    """Returns whether the process has ended; a zombie whose parent never waits for it counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def signal_all(pids, number):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def test_a_launcher_that_stands_still_alone_revives_nobody(paused):
    with paused.connect() as conn:
        (launcher,) = paused.workers("launcher")
        long, short = Session(conn, "long", ttl="1 min"), Session(conn, "short", ttl="2 s")
        wait_until(lambda: not paused.workers())
        # To the launcher it looks as if no other process had run.
        os.kill(launcher, signal.SIGSTOP)
        time.sleep(6)
        os.kill(launcher, signal.SIGCONT)
        wait_until(lambda: conn.execute("SELECT count(*) FROM eskit_lease._sessions").fetchone() == (1,))
        assert not short.heartbeat().alive
        assert long.heartbeat().alive
    assert not paused.logged(PAUSED)


def test_in_a_pause_of_the_whole_server_nobody_expires(paused):
    with paused.connect() as conn:
        (launcher,) = paused.workers("launcher")
        (witness,) = wait_until(lambda: children().get(launcher))
        short = Session(conn, "short", ttl="3 s")
        wait_until(lambda: not paused.workers())
        assert short.heartbeat().alive
        everybody = below(paused.pid)
        assert witness in everybody
        signal_all(everybody, signal.SIGSTOP)
        time.sleep(5)
        # Continues first the processes that give the time back: a client that is faster than they are finds its session
        # expired.
        signal_all([launcher, witness], signal.SIGCONT)
        wait_until(lambda: paused.logged(PAUSED))
        signal_all(everybody, signal.SIGCONT)
        assert short.heartbeat().alive
        assert len(paused.logged(PAUSED)) == 1


def test_the_witness_is_there_again_and_goes_with_its_launcher(paused):
    (launcher,) = paused.workers("launcher")
    (witness,) = wait_until(lambda: children().get(launcher))
    with paused.connect() as conn:
        Session(conn, "has the launcher look around", ttl="1 min")
        os.kill(witness, signal.SIGKILL)
        (another,) = wait_until(lambda: [pid for pid in children().get(launcher, []) if pid != witness])
        os.kill(launcher, signal.SIGTERM)
        wait_until(lambda: gone(another))
        (again,) = wait_until(lambda: paused.workers("launcher"))
        wait_until(lambda: children().get(again))
