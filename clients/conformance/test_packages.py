"""Each library's own checks, and its published form in an empty project, as a new user meets it."""

import os
import subprocess

from conftest import ROOT


def run(alone, script, *args):
    (language,) = set(next(alone.languages) for _ in range(2))
    done = subprocess.run(
        [ROOT / "clients" / language / script, *args], cwd=ROOT, env=os.environ | {"DATABASE_URL": alone.url()}, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def test_check(alone):
    run(alone, "check")


def test_the_first_lines_of_the_readme_lead(alone, tmp_path):
    printed = run(alone, "try", str(tmp_path))
    fence = alone.has("SELECT max(fence) FROM eskit_lease.history")
    assert str(fence) in printed
