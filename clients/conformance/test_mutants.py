"""Does the kit find what it is for? Each rule of the keeper is taken out of a copy of the library for Python in turn, and
the test that is named with it must fail."""

import os
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT
from kit import LANGUAGES

LIBRARY = ROOT / "clients/python"
# What is taken out: the file, its text, what stands there instead; and the test that finds it.
MUTANTS = {
    "trust counts from the answer": (
        "eskit_lease/_core.py",
        "self._heard, self.trusted_until = sent, sent + trust_ms",
        "self._heard, self.trusted_until = sent, now + trust_ms",
        "test_lead.py::test_who_is_cut_off_stops_before_the_next_is_granted",
    ),
    "heartbeats go by the application's pool": (
        "eskit_lease/_line.py",
        "async with self._turn, connection.cursor(row_factory=dict_row) as cursor:",
        "async with self._turn, sys.modules['__main__'].POOL.connection() as pooled, pooled.cursor(row_factory=dict_row) as cursor:",
        "test_lead.py::test_a_busy_pool_stops_no_heartbeat",
    ),
    "news since the ask is not heard": (
        "eskit_lease/_verb.py",
        "await self.keeper.until(is_due, self._look_at - time.monotonic())",
        # Late, so that there is news meanwhile.
        "await self.keeper.until(lambda: False, 0.05); self._seen = min(self._seen, 0) or self.keeper.asks; await self.keeper.until(is_due, self._look_at - time.monotonic())",
        "test_lead.py::test_no_grant_is_missed",
    ),
    "the fence is not checked": (
        "eskit_lease/_scope.py",
        'FENCE_CHECK = Statement("SELECT eskit_lease.fence_check(CAST(%s AS text), CAST(%s AS bigint))")',
        'FENCE_CHECK = Statement("SELECT CAST(%s AS text) IS NULL AND CAST(%s AS bigint) IS NULL")',
        "test_lead.py::test_who_does_not_know_of_its_loss_writes_nothing",
    ),
    "a partition is released before its task has ended": (
        "eskit_lease/_group.py",
        'partition.cancel("the partition moves to another member")',
        "self.keeper.spawn(self.keeper.give_back(session, RELEASE, self.name, partition.partition, partition.fence))",
        "test_work.py::test_a_partition_goes_to_a_newcomer_only_after_its_task_has_ended",
    ),
    "a call is given up by a close, not by a reset": (
        "eskit_lease/_line.py",
        "end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)",
        "pass",
        "test_lead.py::test_an_ask_that_arrives_late_brings_nothing",
    ),
    "a fence is used after an unknown commit": (
        "eskit_lease/_scope.py",
        'self.cancel("the end of a commit is unknown")',
        "pass",
        "test_lead.py::test_a_fence_is_not_used_after_an_unknown_commit",
    ),
}


def run(test, library):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "conftest", "-p", "kit", f"clients/conformance/{test}"]
    env = os.environ | {"LANGUAGES": "python", "KIT_PYTHON": str(library), "PYTEST_XDIST_WORKER": os.environ.get("PYTEST_XDIST_WORKER", "") + "m"}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)


@pytest.mark.skipif("python" not in LANGUAGES, reason="it is about the library for Python")
@pytest.mark.parametrize("rule", MUTANTS)
def test_the_kit_finds(rule, tmp_path):
    file, text, instead, test = MUTANTS[rule]
    broken = tmp_path / "clients/python"
    shutil.copytree(LIBRARY, broken)
    (tmp_path / "target").symlink_to(ROOT / "target")  # with what the program needs
    source = (broken / file).read_text()
    assert source.count(text) == 1, f"{file} has changed: {text}"
    (broken / file).write_text(source.replace(text, instead))
    line = broken / "eskit_lease/_line.py"
    line.write_text(line.read_text().replace("import asyncio\n", "import asyncio\nimport sys\n", 1))
    program = broken / "kit/program.py"
    program.write_text(program.read_text().replace("await self.pool.open()", "await self.pool.open()\n        globals()['POOL'] = self.pool"))
    # What is found is a matter of chance.
    for _ in range(4):
        done = run(test, broken)
        if done.returncode == 1:
            assert "passed" not in done.stdout.splitlines()[-1] or "failed" in done.stdout.splitlines()[-1]
            return
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    pytest.fail(f"nothing was found: {done.stdout[-500:]}")
