"""The examples of the README, pasted into one psql as a reader would, answer what it says that they do."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT


@pytest.fixture
def empty(server):
    """A database without the extension."""
    server.query("CREATE DATABASE readme")
    yield "readme"
    server.query("DROP DATABASE readme WITH (FORCE)")
    server.query("DROP ROLE IF EXISTS billing, metrics")


def masked(line):
    """Without what is another one each time: fences, positions and times; and any number where a note says so."""
    line, note, _ = line.partition("   (")
    return re.sub(r"\d+" if note else r"\d{6,}", "N", line)


def test_examples(server, empty):
    examples = re.findall(r"^```sql\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    psql = [Path(os.environ["PG_BIN"]) / "psql", "-X", "-q", "-a", "-A", "-t", "-F", " | ", "-d", server.dsn(empty)]
    done = subprocess.run(psql, input="".join(examples), capture_output=True, text=True)
    errors = re.compile(r"ERROR: .*")
    assert [masked(line) for line in errors.findall(done.stderr)] == [masked(line) for line in errors.findall("".join(examples))]
    # An example's lines are echoed, after what they have answered; a line that begins with two blanks says what that is.
    answers, compared = [], 0
    echoed = {line for example in examples for line in example.splitlines()}
    for line in done.stdout.splitlines():
        said = re.fullmatch(r"--  (.*)", line)
        if line not in echoed or not line:
            answers.append(line)
        elif said and "..." not in line and not statement.endswith("LIMIT 100;"):  # all partitions; what others write holds the horizon back
            note = "   (" if "   (" in line else ""
            assert masked(answers.pop(0) + note) == masked(said[1]), statement
            compared += 1
        elif not said:
            statement, answers = line, []
    assert compared > 20
