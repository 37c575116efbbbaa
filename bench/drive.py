"""Runs the driver (bench/driver), which measures what pgbench cannot, against the servers of bench/services.py."""

import contextlib
import json
import os
import subprocess

from harness import ROOT
from services import SERVICES, Missing, peer, running

DRIVER = ROOT / "target" / "driver" / "release" / "driver"


class Driver:
    def __init__(self, addresses):
        self.addresses = addresses

    def systems(self, names):
        """Returns those of the named systems that are available."""
        return [name for name in names if name not in SERVICES or name in self.addresses]

    def run(self, what, *arguments, seconds):
        """Returns the driver's output. `seconds`: how long it takes; it is stopped if it takes much longer."""
        servers = [f"--{name.replace('_', '-')}={address}" for name, address in self.addresses.items()]
        # All systems are called over TCP on this machine. To show how much of the time TCP takes, one row uses the Unix
        # socket, as clients of PostgreSQL on its machine do.
        environment = {**os.environ, "PGHOST": "127.0.0.1", "PGSOCKET": os.environ["PGHOST"]}
        command = [DRIVER, *servers, what, *map(str, arguments)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=2 * seconds + 120)
        except subprocess.TimeoutExpired as late:
            raise SystemExit(f"driver {what} does not end") from late
        if done.returncode != 0:
            raise SystemExit(f"driver {what} failed:\n{done.stdout}{done.stderr}")
        return json.loads(done.stdout)


@contextlib.contextmanager
def driver(report, names=()):
    """The driver, with those of the named services that are available. The report names each service that is not
    available, and the driver if it is not."""
    try:
        peer("driver")
    except Missing as why:
        report.add("what the driver measures", f"left out: {why}")
        yield None
        return
    built = Driver({}).run("systems", seconds=1)
    if "etcd" in names and "etcd" not in built:
        report.add("against etcd", "left out: no protoc, which generates its client")
        names = [name for name in names if name != "etcd"]
    with running(report, names) as addresses:
        yield Driver(addresses)
