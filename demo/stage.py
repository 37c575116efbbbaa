"""The processes of a demo: starts them, reads their logs, and waits for their effects.

Nothing here waits for a guessed time: each step waits for what the processes log, or for what the database says.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
PATIENCE = 120  # seconds to wait for a condition


def launch(program, *args, **kw):
    """Starts a process that Ctrl-C does not reach; this process ends it."""
    def ignore():
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    return subprocess.Popen([sys.executable, HERE / program, *args], preexec_fn=ignore, **kw)


class Actor:
    """A process that logs JSON lines."""

    def __init__(self, stage, program, name, *args, **kw):
        self.name, self.log, self.rest = name, [], b""
        self.process = launch(program, name, *args, stdout=subprocess.PIPE, **kw)
        os.set_blocking(self.process.stdout.fileno(), False)
        stage.watch.register(self.process.stdout, selectors.EVENT_READ, self)
        stage.actors.append(self)

    def signal(self, number):
        self.process.send_signal(number)

    def running(self):
        return self.process.poll() is None

    def last(self):
        return self.log[-1]["event"] if self.log else None

    def said(self, event, since=0):
        """Returns the first log line of this event after that time, if any."""
        return next((line for line in self.log if line["event"] == event and line["at"] > since), None)


class Stage:
    def __init__(self):
        self.watch, self.actors, self.others = selectors.DefaultSelector(), [], []

    def pump(self, timeout):
        """Reads new log lines of the actors."""
        for key, _ in self.watch.select(timeout):
            actor = key.data
            chunk = key.fileobj.read()
            if not chunk:
                self.watch.unregister(key.fileobj)
                continue
            *lines, actor.rest = (actor.rest + chunk).split(b"\n")
            for line in lines:
                actor.log.append(json.loads(line))
                self.heard(actor, actor.log[-1])

    def heard(self, actor, line):
        """Called for each log line as it is read; subclasses override it."""

    def until(self, what, condition):
        deadline = time.monotonic() + PATIENCE
        while not (result := condition()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {PATIENCE} s: {what}")
            self.pump(0.01)
        return result

    def ended(self, actor):
        """Waits for the end of a process that has been asked to stop."""
        self.until(f"{actor.name} ends", lambda: not actor.running())
        self.pump(0)
        if actor.process.returncode:
            raise RuntimeError(f"{actor.name} ended with {actor.process.returncode}")

    def end(self):
        for process in [actor.process for actor in self.actors] + self.others:
            if process.poll() is None:
                process.kill()  # SIGKILL ends a stopped process too
            process.wait()
