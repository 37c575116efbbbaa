"""Pastes examples of the documentation into psql, as a reader would, and compares the answers with what the examples
say."""

import os
import re
import subprocess
from pathlib import Path

from conftest import wait_until

COMPLAINT = re.compile(r"(?:ERROR|DETAIL|HINT): .*")


def masked(line):
    """Masks what differs from run to run: fences, positions and times, and any number if a note says so."""
    line, note, _ = line.partition("   (")
    return re.sub(r"\d+" if note else r"\d{6,}", "N", line)


def complaints(text, kinds=COMPLAINT):
    return [masked(line) for line in kinds.findall(text)]


class Psql:
    """A psql that reads pasted lines, and stays open while other psqls get lines."""

    def __init__(self, dsn, stderr):
        command = [Path(os.environ["PG_BIN"]) / "psql", "-X", "-q", "-a", "-A", "-t", "-F", " | ", "-d", dsn]
        with stderr.open("w") as written:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=written, text=True)
        self.stderr = stderr.open()
        self.pasted = 0

    def _run(self, example):
        """Returns what psql printed, and its errors."""
        self.pasted += 1
        mark = f"-- pasted {self.pasted}\n"  # psql echoes a line when it reads it, so all lines before it have run
        self.process.stdin.write(example + mark)
        self.process.stdin.flush()
        printed = []
        while (line := self.process.stdout.readline()) not in ("", mark):  # '' if the example quits psql
            printed.append(line.rstrip("\n"))
        return printed, self.stderr.read()

    def paste(self, example):
        """Returns how many answers were compared. A comment that begins with two blanks has the answer of the statement
        above; one with "..." is not compared."""
        printed, errors = self._run(example)
        only_errors = re.compile(r"ERROR: .*")
        assert complaints(errors, only_errors) == complaints(example, only_errors), errors
        assert set(complaints(example)) <= set(complaints(errors)), errors
        answers, compared, statement = [], 0, ""
        echoed = set(example.splitlines())
        for line in printed:
            said = re.fullmatch(r"--  (.*)", line)
            if line not in echoed or not line:
                answers.append(line)
            elif not said:
                statement, answers = line, []
            elif "..." not in line:
                note = "   (" if "   (" in line else ""
                assert answers, f"{statement} has answered nothing"
                assert masked(answers.pop(0) + note) == masked(said[1]), statement
                compared += 1
        return compared

    def close(self):
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.stderr):
            stream.close()


def settle(server, dbname, example):
    """Waits until the example sees all rows up to the horizon, so no other process may write anywhere in the server."""
    if "position_horizon" in example:
        wait_until(lambda: server.query("SELECT count(*) FROM eskit_lease.position_blockers", dbname=dbname) == [(0,)])


def paste(server, dbname, directory, blocks):
    """Pastes all blocks, each into its psql. Returns how many answers were compared."""
    open_ones, compared = {}, 0
    try:
        for name, example in blocks:
            if name not in open_ones:
                open_ones[name] = Psql(server.dsn(dbname), directory / f"errors-{name}")
            settle(server, dbname, example)
            compared += open_ones[name].paste(example)
    finally:
        for psql in open_ones.values():
            psql.close()
    return compared
