"""The cost of calls: the processor time of the backend and of the extension's own processes, which other load hardly
changes, and the time that the client waits."""

import contextlib
import os
import pathlib
import statistics
import time

from groups import Processor

EXTENSION = "SELECT pid FROM pg_stat_activity WHERE backend_type LIKE 'eskit_lease%'"


class Workers:
    """The launcher and the workers of all databases. They come and go: the time of a process that has ended stays
    counted, as of the last look."""

    def __init__(self, db):
        self.db, self.spent, self.switches = db, {}, {}

    def look(self):
        for (pid,) in self.db.execute(EXTENSION).fetchall():
            process = pathlib.Path(f"/proc/{pid}")
            try:
                nanoseconds, status = int((process / "schedstat").read_text().split()[0]), (process / "status").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            self.spent[pid] = nanoseconds / 1e6
            self.switches[pid] = int(status.split("voluntary_ctxt_switches:")[1].split()[0])

    def milliseconds(self):
        self.look()
        return sum(self.spent.values())

    def wakes(self):
        """Returns how often the processes have gone to sleep, as of the last look."""
        return sum(self.switches.values())


class Turn:
    """Microseconds of one call, the mean over several in a row."""

    def __init__(self, cpu, waited, workers):
        self.cpu, self.waited, self.workers = cpu, waited, workers


@contextlib.contextmanager
def together(backend):
    """Pins client and backend to one processor. On two processors each call wakes the other one from its sleep, which
    costs more than SELECT 1, and chance would decide which pair is affected."""
    mine = os.sched_getaffinity(0)
    for pid in (0, backend):
        os.sched_setaffinity(pid, {min(mine)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, mine)


class Meter:
    """Measures operations (operations.py) on one connection; another connection reads what the extension's processes
    spend meanwhile."""

    def __init__(self, db, other):
        self.backend, self.cpu, self.workers = db.info.backend_pid, Processor(db), Workers(other)

    def turn(self, operation, calls):
        call = operation(calls)
        with together(self.backend):
            workers, cpu, began = self.workers.milliseconds(), self.cpu.milliseconds(), time.perf_counter()
            for i in range(calls):
                call(i)
            waited, cpu = time.perf_counter() - began, self.cpu.milliseconds() - cpu
            workers = self.workers.milliseconds() - workers
        return Turn(cpu / calls * 1e3, waited / calls * 1e6, workers / calls * 1e3)


def turns(sides, calls, rounds):
    """Measures each operation of each side in turns; a side is a meter and its operations. A first turn, which does not
    count, makes plans and warms caches."""
    found = [{name: [] for name in operations} for _, operations in sides]
    for number in range(rounds + 1):
        for name in sides[0][1]:
            for side, (meter, operations) in enumerate(sides):
                turn = meter.turn(operations[name], max(1, calls // 2) if number == 0 else calls)
                if number > 0:
                    found[side][name].append(turn)
    return found


def middle(turns, what="cpu"):
    return statistics.median(getattr(turn, what) for turn in turns)
