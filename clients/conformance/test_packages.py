"""Each library's own checks, and its published form in an empty project, as a new user meets it."""

import os
import re
import subprocess
import time

import pytest
from conftest import ROOT

pytestmark = pytest.mark.timeout(900)  # compilers begin from nothing


def run(alone, script, *args):
    (language,) = set(next(alone.languages) for _ in range(2))
    env = os.environ | {"DATABASE_URL": alone.url(), "CARGO_BUILD_JOBS": "2"}
    command = [ROOT / "clients" / language / script, *args]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def test_check(alone):
    run(alone, "check")


def test_the_first_lines_of_the_readme_lead(alone, tmp_path):
    """They print a fence, which was drawn meanwhile."""
    session = alone.has("SELECT session FROM eskit_lease.session_open('kit', '1 h')")
    draw = lambda name: alone.has("SELECT fence FROM eskit_lease.lease_acquire(%s, %s)", name, session)  # noqa: E731
    before, began = draw("before"), time.monotonic()
    printed = run(alone, "try", str(tmp_path))
    alone.tell("README in an empty folder: seconds until it has led", time.monotonic() - began)
    assert any(before < int(number) < draw("after") for number in re.findall(r"\b\d+\b", printed)), printed
