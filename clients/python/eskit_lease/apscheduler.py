"""APScheduler 3 in a fleet: any number of processes have the same scheduler, and one of them runs it.

fleet = Fleet(leases, "reports", pool.connection)
scheduler = BackgroundScheduler(executors={"default": fleet.executor(ThreadPoolExecutor(10))})
scheduler.add_job(report, "cron", hour=3, id="report")
fleet.run(scheduler)
"""

from __future__ import annotations

import threading
from datetime import datetime
from typing import Any

import psycopg
from apscheduler.executors.base import BaseExecutor

from ._errors import Closed, LeaseError
from ._schedule import Connections, Schedule
from .sync import Lead, Leases


class Fleet:
    """The processes that share a schedule.

    Each fire time of a job is recorded under the fence before the job is submitted: so it runs once at most. The
    processes have to agree on the `id` of each job, and give it always.
    """

    def __init__(self, leases: Leases, name: str, connections: Connections) -> None:
        """Does nothing yet.

        Args:
            leases: the keeper, which is open when `run` is called.
            name: the name of the lease.
            connections: gives a connection of psycopg as a block: `pool.connection`, or a function that connects.
        """
        self._leases, self._schedule = leases, Schedule(name, connections)
        self._lead: Lead | None = None
        self._changed = threading.Condition()
        self._is_over = False

    def executor(self, executor: BaseExecutor) -> BaseExecutor:
        """Returns an executor that lets another one run what no other process has run."""
        return _Once(self, executor)

    def run(self, scheduler: Any) -> None:
        """Runs a scheduler whenever this process leads, until the keeper drains. Then it is shut down: a job that runs
        may finish, while another process leads already.

        `scheduler`: a `BackgroundScheduler`, or another one whose `start` returns.
        """
        try:
            scheduler.start(paused=True)
            while True:
                with self._leases.lead(self._schedule.name) as lead:
                    self._lead_once(scheduler, lead)
        except Closed:
            pass
        finally:
            self._set(None, is_over=True)
            scheduler.shutdown()

    def _lead_once(self, scheduler: Any, lead: Lead) -> None:
        try:
            self._schedule.prepare()
        except psycopg.Error as error:
            self._schedule.wait(error, lead)
            return
        self._set(lead)
        scheduler.resume()
        while not (lead.draining or lead.ended):
            lead.news()
        scheduler.pause()
        if lead.draining:
            scheduler.get_job("")  # waits until what was due is submitted, while it can still be recorded
        self._set(None)

    def record(self, job: str, times: list[datetime]) -> list[datetime]:
        """Returns the fire times that are this process's to run. If it has lost the lead, waits until it leads again:
        the job store must not go on to the next time without knowing."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lead is not None or self._is_over)
                lead = self._lead
            if lead is None:
                raise Closed("the scheduler is shut down")
            try:
                return self._schedule.record(lead, job, times)
            except (LeaseError, psycopg.Error) as error:
                if lead.draining:
                    raise
                self._schedule.wait(error, lead)

    def _set(self, lead: Lead | None, *, is_over: bool = False) -> None:
        with self._changed:
            self._lead, self._is_over = lead, is_over
            self._changed.notify_all()


class _Once(BaseExecutor):  # type: ignore[misc]
    def __init__(self, fleet: Fleet, executor: BaseExecutor) -> None:
        super().__init__()
        self._fleet, self._executor = fleet, executor

    def start(self, scheduler: Any, alias: str) -> None:
        self._executor.start(scheduler, alias)

    def shutdown(self, wait: bool = True) -> None:
        self._executor.shutdown(wait)

    def submit_job(self, job: Any, run_times: list[datetime]) -> None:
        mine = self._fleet.record(job.id, run_times)
        if mine:
            self._do_submit_job(job, mine)

    def _do_submit_job(self, job: Any, run_times: list[datetime]) -> None:
        self._executor.submit_job(job, run_times)
