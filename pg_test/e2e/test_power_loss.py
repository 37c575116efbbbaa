"""The power fails while clients work: a server started from what the disk has then has all that was confirmed, and
grants fences above all that were ever answered. So does a server started from a snapshot of the data directory between
two writes, beside the original, which lives on."""

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from client import Session, call
from conftest import ROOT, Server, once, wait_until
from faults import LOGS_SQLSTATES, Competition, Log, nothing_left
from psycopg.types.json import Jsonb


class Disk:
    """A file system in a file. Only data that was written back or synced is in the file, as on a disk after a power
    failure."""

    def __init__(self, name):
        self.image, self.at, self.mounted = ROOT / f"target/cluster/{name}.img", ROOT / f"target/cluster/{name}", False

    def make(self, size="700M"):
        self.end()
        self.image.parent.mkdir(parents=True, exist_ok=True)
        run("truncate", "-s", size, self.image)
        run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1", self.image)
        return self.mount()

    def mount(self):
        """Mounts the file system. Its journal is written when something is synced, and otherwise so rarely that a copy
        of the file shows one moment."""
        self.at.mkdir(exist_ok=True)
        run("mount", "-o", "loop,commit=600", self.image, self.at)
        self.mounted = True
        return self.at

    def end(self):
        if self.mounted or os.path.ismount(self.at):
            run("umount", "--lazy", self.at)
            self.mounted = False
        self.image.unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            self.at.rmdir()


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"{command}: {done.stderr}")


@contextlib.contextmanager
def halted(server):
    """Stops all processes of the server: no write or answer is under way, except in the kernel."""
    pids = [server.pid]
    os.kill(server.pid, signal.SIGSTOP)  # from here on it starts no more processes
    pids += children(server.pid)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        wait_until(lambda: state(pid) in "TZ")  # noqa: B023
    try:
        yield
    finally:
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]




@once
@pytest.mark.parametrize("how", ["power loss", "snapshot"])
def test_copy_of_a_server_at_work(how):
    disk, copied, copy = Disk("e2e-disk"), Disk("e2e-copied"), None
    lines = ["fsync = on", LOGS_SQLSTATES, "checkpoint_timeout = '30s'", "max_wal_size = '64MB'"]
    server = Server("e2e-power", *lines)
    try:
        if how == "power loss":
            move_to(server, disk)
        log = Log(server)
        server.query("CREATE EXTENSION eskit_lease")
        server.query("SELECT eskit_lease.queue_create('q')")
        with Competition(server, count=6, resources=("a", "b", "c")) as competition, server.connect() as conn:
            ids = set(call(conn, "item_add_many", "q", [Jsonb(i) for i in range(50)]))
            competition.go_on(20)
            with halted(server):
                confirmed, highest = competition.confirmed(), competition.highest_fence()
                source = take(disk, copied) if how == "power loss" else snapshot(server)
            competition.go_on(20)
        copy = Server("e2e-power-copy", LOGS_SQLSTATES, copy_of=source)
        competition.prove(copy, confirmed)
        assert {id for (id,) in copy.query("SELECT id FROM eskit_lease.items")} == ids
        with copy.connect() as conn:
            session = Session(conn, "in the copy", ttl="60 s")
            new = [session.take(f"new {i}") for i in range(10)]
            assert min(new) > highest, "above all that was answered before"
            assert min(new) > competition.highest_fence(), "and, by the clock, above what the other one has granted since"
            for resource in ("a", "b", "c"):  # the holders have expired a TTL after the start
                assert wait_until(lambda: (answer := session.acquire(resource, queue=True)).granted and answer.fence) > highest
        nothing_left(copy)
        competition.prove(server)
        nothing_left(server)
        log.is_clean()
    finally:
        if copy:
            copy.stop("immediate")
        server.stop("immediate")
        for each in (disk, copied):
            each.end()
        shutil.rmtree(ROOT / "target/cluster/e2e-snapshot", ignore_errors=True)


def move_to(server, disk):
    """Moves the server's data to a disk of its own."""
    try:
        at = disk.make()
    except OSError as error:
        pytest.skip(f"loop devices are forbidden here: {error}")
    server.stop()
    run("cp", "-a", server.data, at / "data")
    shutil.rmtree(server.data)
    server.data.symlink_to(at / "data")
    run("sync", "-f", at)
    server.restart()


def take(disk, copied):
    """Copies the disk at this moment, and mounts the copy as after a reboot."""
    run("cp", "--reflink=auto", "--sparse=always", disk.image, copied.image)
    return copied.mount() / "data"


def snapshot(server):
    """Copies all files as they are, like a snapshot of the file system."""
    at = ROOT / "target/cluster/e2e-snapshot"
    shutil.rmtree(at, ignore_errors=True)
    run("cp", "-a", server.data, at)
    return at
