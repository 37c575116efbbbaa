"""A common setup for automatic failover of PostgreSQL: two nodes that Patroni manages by way of etcd, and HAProxy in
front of them. Each is like a host of its own: they talk to each other only over links that can be cut."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import psycopg
from conftest import MAJOR, ROOT, wait_until
from links import Link
from psycopg.conninfo import make_conninfo

PROGRAMS = ROOT / "target/patroni"
# Seconds, small so that a failover is quick: Patroni's ttl of a leader, and its loop_wait.
BELIEVED, LOOKS = 5, 1


def missing():
    return not (PROGRAMS / ".ready").exists()


def environment():
    """The environment with the paths of the programs' libraries, as the programs are unpacked and not installed."""
    libraries = ":".join(str(path) for path in PROGRAMS.glob("usr/lib/*-linux-gnu*"))
    return os.environ | {"LD_LIBRARY_PATH": libraries, "PYTHONPATH": str(PROGRAMS / "usr/lib/python3/dist-packages")}


def as_server(*command):
    return ["bash", "-c", '. "$0" "$1" && as_server "${@:2}"', ROOT / "pg_test/env", MAJOR, *command]


def free_port():
    """Returns a port below those that the system gives to clients, which could take the port of a server that is down
    for a while."""
    while True:
        port = random.randrange(10_000, 20_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port


def children(pid):
    return [int(child) for task in Path(f"/proc/{pid}/task").glob("*/children") for child in task.read_text().split()]


class Program:
    """A program that runs until it is killed, in a process group of its own, as PostgreSQL's user."""

    def __init__(self, directory, name, *command):
        with (directory / f"{name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                as_server(*command), cwd=directory, env=environment(), stdout=log, stderr=log, start_new_session=True
            )

    def signal(self, number):
        os.killpg(self.process.pid, number)

    def kill(self):
        if self.process.poll() is None:
            self.signal(signal.SIGKILL)
            self.process.wait()


class Node:
    """PostgreSQL, and the Patroni that starts and stops it."""

    def __init__(self, stack, name):
        self.directory, self.name, self.port, self.api = stack.directory, name, free_port(), free_port()
        self.data, self.conf = stack.directory / name, stack.directory / f"{name}.json"
        self.to_etcd = Link(stack.etcd_port)
        self.from_haproxy, self.from_peer = ({to: Link(to) for to in (self.port, self.api)} for _ in range(2))
        hba = [f"host {database} all 127.0.0.1/32 scram-sha-256" for database in ("all", "replication")]
        password = os.environ["PGPASSWORD"]
        config = {
            "scope": "eskit", "name": name,
            "restapi": {"listen": f"127.0.0.1:{self.api}", "connect_address": f"127.0.0.1:{self.from_peer[self.api].port}"},
            # Not etcd3: with it a leader that was stopped for too long takes the lock from its successor (Patroni 3.0).
            # As a proxy, so that Patroni does not use the address that etcd advertises.
            "etcd": {"hosts": [f"127.0.0.1:{self.to_etcd.port}"], "use_proxies": True},
            "watchdog": {"mode": "off"},
            "bootstrap": {
                "dcs": {
                    "ttl": BELIEVED, "loop_wait": LOOKS, "retry_timeout": 2, **stack.modes,
                    "maximum_lag_on_failover": 1 << 27,  # in tests it lags
                    "postgresql": {"use_pg_rewind": True, "parameters": stack.parameters},
                },
                "initdb": [{"encoding": "UTF8"}, {"locale": "C"}, {"wal-segsize": "1"}],  # pg_rewind copies whole segments
            },
            "postgresql": {
                "listen": f"127.0.0.1:{self.port}", "connect_address": f"127.0.0.1:{self.from_peer[self.port].port}",
                "data_dir": str(self.data), "bin_dir": os.environ["PG_BIN"], "pg_hba": hba,
                "authentication": {
                    who: {"username": name, "password": password} for who, name in (("superuser", "postgres"), ("replication", "replicator"))
                },
                "parameters": {"unix_socket_directories": "", "fsync": "off", "statement_timeout": "120s", "lc_messages": "C"},
            },
        }  # fmt: skip
        self.conf.write_text(json.dumps(config))  # which is YAML as well
        self.start()

    def start(self):
        self.patroni = Program(self.directory, self.name, PROGRAMS / "usr/bin/patroni", self.conf)

    def answers(self, path):
        """Returns whether Patroni answers this path with 200, as HAProxy asks."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.api}/{path}", timeout=0.5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def connect(self):
        return psycopg.connect(make_conninfo(host="127.0.0.1", port=self.port, user="postgres", dbname="postgres"), autocommit=True)

    def query(self, sql, *params):
        with self.connect() as conn:
            cur = conn.execute(sql, params or None)
            return cur.fetchall() if cur.description else []

    def signal(self, number):
        """Sends a signal to all processes of PostgreSQL, first to the postmaster, so that it starts no more. (If the
        postmaster is killed, the others end as well.)"""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            postmaster = int((self.data / "postmaster.pid").read_text().split()[0])
            os.kill(postmaster, number)
            for pid in children(postmaster):
                os.kill(pid, number)

    def kill(self):
        """Kills everything at once, Patroni first, as it would start PostgreSQL again."""
        self.patroni.kill()
        self.signal(signal.SIGKILL)


class Stack:
    """Two nodes, etcd and HAProxy. `connect` goes by way of HAProxy to the node that leads. `modes` are Patroni's own;
    in the synchronous modes the leader asks its standby for confirmations."""

    def __init__(self, directory, **modes):
        self.directory, self.port, self.etcd_port = directory, free_port(), free_port()
        self.modes, self.parameters = modes, {"shared_preload_libraries": "eskit_lease"}
        self.synchronous, self.strict = "synchronous_mode" in modes, "synchronous_mode_strict" in modes
        if self.synchronous:
            self.parameters["eskit_lease.confirm_interval"] = "100 ms"
        client, peer = f"http://127.0.0.1:{self.etcd_port}", f"http://127.0.0.1:{free_port()}"
        self.etcd = Program(
            directory, "etcd", PROGRAMS / "usr/bin/etcd", "--data-dir", directory / "etcd", "--enable-v2", "--unsafe-no-fsync",
            "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
        )  # fmt: skip
        self.nodes = [Node(self, name) for name in ("node-1", "node-2")]
        (directory / "haproxy.cfg").write_text(HAPROXY.format(port=self.port, servers="\n".join(
            f"    server {node.name} 127.0.0.1:{node.from_haproxy[node.port].port} check port {node.from_haproxy[node.api].port}"
            for node in self.nodes
        )))  # fmt: skip
        self.haproxy = Program(directory, "haproxy", PROGRAMS / "usr/sbin/haproxy", "-db", "-f", directory / "haproxy.cfg")

    def leads(self, node):
        """Returns whether a node leads. Patroni says so before it has promoted PostgreSQL, so this also asks
        PostgreSQL."""
        return node.answers("primary") and node.query("SELECT pg_is_in_recovery()") == [(False,)]

    def between_nodes(self):
        return [link for node in self.nodes for link in node.from_peer.values()]

    def around(self, node):
        """Returns all links between the node's host and the others."""
        return [node.to_etcd, *node.from_haproxy.values(), *self.between_nodes()]

    def pair(self):
        """Waits until one node leads and the other streams from it and may be promoted. Returns both."""

        def found():
            with contextlib.suppress(psycopg.OperationalError):  # Patroni answers while it stops PostgreSQL
                leader = next(filter(self.leads, self.nodes), None)
                if leader and leader.query("SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'") == [(1,)]:
                    (follower,) = (node for node in self.nodes if node is not leader)
                    return follower.answers("synchronous" if self.synchronous else "replica") and (leader, follower)

        return wait_until(found, timeout=120, pause=0.2)

    def connect(self):
        dsn = make_conninfo(host="127.0.0.1", port=self.port, user="postgres", dbname="postgres", connect_timeout=2)
        return psycopg.connect(dsn, autocommit=True)

    def patronictl(self, *args):
        command = as_server(PROGRAMS / "usr/bin/patronictl", "-c", self.nodes[0].conf, *args)
        done = subprocess.run(command, capture_output=True, text=True, env=environment())
        assert done.returncode == 0, done.stdout + done.stderr

    def stop(self):
        for node in self.nodes:
            node.signal(signal.SIGCONT)
            node.patroni.signal(signal.SIGCONT)
            node.kill()
            for link in self.around(node):
                link.end()
        self.haproxy.kill()
        self.etcd.kill()


# As in Patroni's documentation: connections to a node that no longer leads are cut.
HAPROXY = """
defaults
    mode tcp
    timeout connect 2s
    timeout check 1s
    timeout client 1m
    timeout server 1m
listen primary
    bind 127.0.0.1:{port}
    option httpchk OPTIONS /primary
    http-check expect status 200
    default-server inter 500ms fall 2 rise 1 on-marked-down shutdown-sessions
{servers}
"""
