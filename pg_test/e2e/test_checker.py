"""Clients under a storm of faults, and checks of all their answers: pg_test/checker describes them.

`make soak` runs the same for longer, by a schedule of another seed."""

import os
import subprocess

import pytest
from conftest import ROOT, Server

SEED = os.environ.get("SOAK_SEED", "5")
SECONDS = os.environ.get("SOAK_SECONDS", "15")


@pytest.mark.flaky(reruns=0)  # what its history proves once is proved
def test_no_check_finds_a_fault():
    server = Server("checker")
    restart = f"{ROOT}/pg_test/cluster restart {server.name} immediate"
    history = ROOT / f"target/log/{server.name}-{SEED}.jsonl"
    history.parent.mkdir(exist_ok=True)
    run = [ROOT / "target/debug/checker", "run", "--seed", SEED, "--seconds", SECONDS, "--history", history, "--crash", "--restart", restart]
    env = os.environ | {"PGHOST": server.host, "PGPORT": str(server.port), "PGUSER": "postgres"}
    done = subprocess.run(run, env=env, stdout=subprocess.PIPE, text=True)
    print(done.stdout)
    server.stop()
    assert done.returncode == 0, " | ".join(reversed(done.stdout.splitlines()))  # a summary shows one line: the faults come first
