"""When each job of a schedule was last run, kept in the database for the adapters of schedulers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import psycopg

from ._errors import describe
from ._keeper import log
from .sync import Lead

CREATE = """CREATE TABLE IF NOT EXISTS eskit_lease_schedule (
                schedule text, job text, ran_at timestamptz NOT NULL, PRIMARY KEY (schedule, job))"""
LAST = "SELECT job, ran_at FROM eskit_lease_schedule WHERE schedule = %s"
RECORD = """INSERT INTO eskit_lease_schedule VALUES (%s, %s, %s)
            ON CONFLICT (schedule, job) DO UPDATE SET ran_at = excluded.ran_at"""

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0  # seconds, before what failed is tried again

Connections = Callable[[], contextlib.AbstractContextManager[psycopg.Connection[Any]]]


class Trouble:
    """Something that goes wrong again and again: it is logged once until it changes, and tried after longer pauses."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.end()

    def end(self) -> None:
        self._told, self._pause = "", FIRST_PAUSE

    def pause(self, error: BaseException) -> float:
        """Returns for how long to pause, in seconds."""
        text = describe(error)
        if text != self._told:
            self._told = text
            log.warning("%s: %s", self._what, text)
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        return pause


class Schedule:
    """The leader of a schedule records each run before it begins, under its fence. So a fire time runs at most once in
    the fleet, whichever process was killed, stopped or cut off.

    The table has to be in the search path. If it is missing, the first leader makes it.
    """

    def __init__(self, name: str, connections: Connections) -> None:
        self.name, self._connections = name, connections
        self.trouble = Trouble(f"schedule {name}")

    def wait(self, error: Exception, lead: Lead | None) -> None:
        """Waits before what has failed is tried again; no longer than the lead lasts, if there is one."""
        until = time.monotonic() + self.trouble.pause(error)
        while True:
            time.sleep(FIRST_PAUSE)
            if time.monotonic() >= until or (lead is not None and (lead.ended or lead.draining)):
                return

    def prepare(self) -> None:
        """Makes the table. A leader does this, as two processes at once would disturb each other."""
        with self._connections() as db:
            with db.transaction():
                if db.execute("SELECT to_regclass('eskit_lease_schedule')").fetchone() == (None,):
                    db.execute(CREATE)

    def last(self) -> dict[str, datetime]:
        """Returns when each job was last run."""
        with self._connections() as db, db.transaction():
            return dict(db.execute(LAST, (self.name,)).fetchall())

    def record(self, lead: Lead, job: str, times: list[datetime]) -> list[datetime]:
        """Records runs of a job, and returns those that were not recorded before: run them, and no others.

        Raises `Lost`, `Refused` or `Unsure`, or the driver's error; then run none.
        """
        with self._connections() as db, lead.transaction(db):
            last = dict(db.execute(LAST + " AND job = %s", (self.name, job)).fetchall()).get(job)
            new = [time for time in times if last is None or time > last]
            if new:
                db.execute(RECORD, (self.name, job, max(new)))
        self.trouble.end()
        return new
