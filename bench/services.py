"""etcd and Redis, each a server of its own on a free port of this machine. Its files are on the same file system as the
clusters of PostgreSQL, and synced as PostgreSQL syncs its own. A system that is not available is left out, and the
report names it."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time

from harness import HERE, ROOT

PEERS = ROOT / "target" / "peers"
DATA = ROOT / "target" / "bench" / "services"
# Seconds to wait until a server answers or has ended (PATIENCE), and until a peer is ready (BUILD): building the driver
# takes some minutes, once.
PATIENCE = 20
BUILD = 3_600


class Missing(Exception):
    """A peer is not available on this machine; the message says why."""


def peer(name):
    """Prepares a peer, or raises Missing."""
    try:
        done = subprocess.run([HERE / "peers", name], capture_output=True, text=True, timeout=BUILD)
    except subprocess.TimeoutExpired as late:
        raise Missing("not ready in time") from late
    if done.returncode != 0:
        raise Missing((done.stderr.strip().splitlines() or ["no reason given"])[-1])


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answers(port, request, expected):
    """Returns whether the server at the port gives the expected answer."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as client:
            client.settimeout(1)
            client.sendall(request)
            answer = b""
            while expected not in answer:
                part = client.recv(4096)
                if not part:
                    return False
                answer += part
            return True
    except OSError:
        return False


@contextlib.contextmanager
def server(package, name, command, port, request, expected):
    """Runs a server with an empty directory, and gives its HOST:PORT."""
    folder = DATA / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    libraries = ":".join(str(found) for found in (PEERS / package / "usr" / "lib").glob("*-linux-gnu"))
    with open(folder / "log", "w") as log:
        process = subprocess.Popen([PEERS / package / "usr" / "bin" / command[0], *command[1:]], cwd=folder, stdin=subprocess.DEVNULL,
                                   stdout=log, stderr=log, env={**os.environ, "LD_LIBRARY_PATH": libraries})  # fmt: skip
    try:
        deadline = time.monotonic() + PATIENCE
        while not answers(port, request, expected):
            if process.poll() is not None or time.monotonic() > deadline:
                last = (folder / "log").read_text().strip().splitlines()[-1:]
                raise Missing(f"{name} does not start: {''.join(last)}")
            time.sleep(0.05)
        yield f"127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def etcd():
    port, peers = free_port(), free_port()
    own, others = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peers}"
    command = ["etcd", "--name=bench", "--data-dir=data", f"--listen-client-urls={own}", f"--advertise-client-urls={own}",
               f"--listen-peer-urls={others}", f"--initial-advertise-peer-urls={others}", f"--initial-cluster=bench={others}",
               "--logger=zap", "--log-level=warn"]  # fmt: skip
    # etcd is healthy once it has elected itself.
    return server("etcd", "etcd", command, port, b"GET /health HTTP/1.0\r\n\r\n", b'"health":"true"')


def redis(name, *options):
    port = free_port()
    command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--save", "", *options]
    return server("redis", name, command, port, b"PING\r\n", b"+PONG")


# Each service by the driver's name for it: its programs, and how it is started.
SERVICES = {
    "etcd": ("etcd", etcd),
    "redis": ("redis", lambda: redis("redis", "--appendonly", "no")),
    "redis_always": ("redis", lambda: redis("redis-always", "--appendonly", "yes", "--appendfsync", "always")),
}


@contextlib.contextmanager
def running(report, names):
    """Gives the addresses of the services that could be started. The report names the others."""
    with contextlib.ExitStack() as stack:
        addresses = {}
        for name in names:
            package, start = SERVICES[name]
            try:
                peer(package)
                addresses[name] = stack.enter_context(start())
            except Missing as why:
                report.add(f"against {name}", f"left out: {why}")
        yield addresses
