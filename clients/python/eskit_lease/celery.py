"""Celery beat in a fleet: any number of processes run `celery beat`, and one of them sends the tasks.

    celery -A app beat -S eskit_lease.celery:Scheduler

The settings of the app: `eskit_lease_url`, a connection string (by default what DATABASE_URL says); `eskit_lease_name`,
the name of the lease ("celery-beat"); `eskit_lease_ttl`, in seconds (30).
"""

from __future__ import annotations

import contextlib
import os
from functools import partial
from typing import Any

import psycopg
from celery import beat

from ._errors import LeaseError
from ._schedule import Schedule
from .sync import Lead, Leases

PAUSE = 1.0  # seconds: a signal that comes just as a wait begins is handled when the wait has ended


class Scheduler(beat.Scheduler):  # type: ignore[misc]
    """Waits until it leads, and then does what its base does.

    When each entry ran last is kept in the database, recorded under the fence before the task is sent: so a fire time
    is sent once at most. It is sent late if it fell into a hand-over, and not at all if the process ended between the
    record and the send.
    """

    _leases: Leases | None = None  # opened by the first tick, as beat may fork before
    _lead: Lead | None = None
    _scope: contextlib.ExitStack  # which ends the lead
    _schedule: Schedule
    _is_ticking = False

    def tick(self, *args: Any, **given: Any) -> float:
        # The caller would sleep through the end of the lead. So this waits instead.
        self._is_ticking = True
        try:
            if self._lead is None or self._lead.ended:
                self._begin()
            if self._lead is not None:
                delay = super().tick(*args, **given) or 0.0
                self._lead.cancelled.wait(min(delay, PAUSE))
        except (psycopg.Error, TimeoutError) as error:
            self._schedule.wait(error, self._lead)
        finally:
            self._is_ticking = False
        return 0.0

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        begun = self.schedule[entry.name]  # the entry after this run
        try:
            assert self._lead is not None
            is_mine = bool(self._schedule.record(self._lead, entry.name, [begun.last_run_at]))
        except (LeaseError, psycopg.Error) as error:
            self._schedule.wait(error, self._lead)
            self.schedule[entry.name], self._heap = entry, None  # it is due again
        else:
            if is_mine:
                super().apply_entry(entry, producer=producer)

    def close(self) -> None:
        """Hands over at once. The handler of a signal calls this amid a tick, and once more when the tick has ended."""
        if self._is_ticking:
            return
        super().close()
        if self._leases is not None:
            self._scope.close()
            self._leases.close()
            self._leases = None

    def _begin(self) -> None:
        """Waits for the lead, for `max_interval` at most, and takes up the former leader's work."""
        leases = self._leases or self._open()
        self._scope.close()
        self._lead = None
        with contextlib.suppress(TimeoutError), contextlib.ExitStack() as scope:
            lead = scope.enter_context(leases.lead(self._schedule.name, timeout=self.max_interval))
            self._schedule.prepare()
            for name, ran_at in self._schedule.last().items():
                if name in self.schedule:
                    self.schedule[name].last_run_at = ran_at.astimezone(self.app.timezone)
            self._heap = None
            self._lead, self._scope = lead, scope.pop_all()

    def _open(self) -> Leases:
        settings = self.app.conf
        url = settings.get("eskit_lease_url") or os.environ.get("DATABASE_URL", "")
        name, ttl = settings.get("eskit_lease_name", "celery-beat"), settings.get("eskit_lease_ttl", 30)
        limit = max(2, int(ttl / 2))
        connect = partial(psycopg.connect, url, connect_timeout=limit, prepare_threshold=None)
        self._schedule, self._scope = Schedule(name, connect), contextlib.ExitStack()
        leases = Leases(url, ttl=ttl)
        leases.open()
        self._leases = leases
        return leases
