"""Judges the journal of queues.py from outside, without the extension's tables.

A fault is an item that two living sessions have claimed at a time, that is claimed before its time or out of order,
that is done twice or never, whose attempts are counted wrongly, or that is finished under a former claim or by a
session that has ended. Each line of the journal was written while its transaction had locked the item. So the numbers
of an item's lines are in the order of its commits, and so are those of a key's lines."""

import math
from dataclasses import dataclass

from queue_workers import MAX_ATTEMPTS, QUEUES


@dataclass
class Item:
    """An item as the journal has it so far. It was added, or became due, between `low` and `high`."""

    id: int
    queue: str
    unit: object
    number: int
    low: float
    high: float
    state: str = "ready"
    attempts: int = 0
    due: float | None = None
    fence: int | None = None
    session: object = None


class Oracle:
    def __init__(self, sessions, committed, partition_of):
        """`committed`: when the answer to each commit came. `partition_of`: the partition of a key, or of an id without
        a key."""
        self.sessions, self.committed, self.partition_of = sessions, committed, partition_of
        self.items, self.units, self.heads, self.faults = {}, {}, {}, []

    def judge(self, journal):
        for event in journal:
            item = self.items.get(event.item)
            if (event.what == "add") != (item is None):
                self.fault(event, "is added twice" if item else "was never added")
            else:
                getattr(self, event.what if event.what in ("add", "claim", "requeue") else "finish")(event, item)
        for item in self.items.values():
            if item.state != "done":
                self.faults.append(f"{item.queue}: item {item.id} is lost, last {item.state}")
        return self.faults

    def fault(self, event, what):
        self.faults.append(f"{event.queue}: item {event.item} {what}: {event}")

    def unit(self, event):
        """Returns the unit whose items are claimed one at a time; None for an item that stands alone."""
        order, group = QUEUES[event.queue]
        if order == "none" or order == "key" and event.key is None:
            return None
        partition = self.partition_of(event.key or str(event.item)) if group else 0
        return event.queue, partition if order == "fifo" else event.key

    def add(self, event, _):
        low, high = event.began, self.committed.get(event.token, math.inf)
        if event.due:
            low, high = max(low, event.due), max(high, event.due)
        unit = self.unit(event)
        item = self.items[event.item] = Item(event.item, event.queue, unit, event.number, low, high, due=event.due)
        self.units.setdefault(unit, {})[item.id] = item

    def lives(self, item, at):
        """Returns whether the session that has claimed the item was certainly alive at that time."""
        session = self.sessions.get(item.session)
        return session is not None and at < min(session.alive_until, session.ending_from)

    def may_be_dead(self, item, at):
        """Returns whether the item may be dead because its claimer ended during the last attempt."""
        return item.state == "claimed" and item.attempts == MAX_ATTEMPTS and not self.lives(item, at)

    def claim(self, event, item):
        if item.state in ("done", "dead"):
            self.fault(event, f"is claimed though it is {item.state}")
        if item.state == "claimed" and self.lives(item, event.at):
            self.fault(event, f"is claimed under fence {item.fence} by a session that lives")
        if event.attempt != item.attempts + 1 or event.attempt > MAX_ATTEMPTS:
            self.fault(event, f"has had {item.attempts} attempts")
        if event.number != item.number:
            self.fault(event, f"was added with payload {item.number}")
        if item.due is not None and event.at < item.due:
            self.fault(event, f"is due at {item.due}")
        if item.unit is not None:
            self.in_turn(event, item)
        item.state, item.attempts, item.due = "claimed", event.attempt, None
        item.fence, item.session = event.fence, event.session

    def in_turn(self, event, item):
        head = self.heads.get(item.unit)
        if head is not None and head is not item:
            if self.may_be_dead(head, event.at):
                head.state, head = "dead", None
            else:
                self.fault(event, f"is given before item {head.id} of its key is finished")
        if head is None:
            # No item that was added before this one may still wait.
            for other in self.units[item.unit].values():
                if other.state == "ready" and other.high < item.low:
                    self.fault(event, f"overtakes item {other.id}, which was there before {other.high}")
        self.heads[item.unit] = item

    def finish(self, event, item):
        if item.state != "claimed" or item.fence != event.fence:
            self.fault(event, f"is {item.state} under fence {item.fence}")
        session = self.sessions.get(item.session)
        if session is not None and event.began > session.ended_by:
            self.fault(event, f"is finished by a session that had ended by {session.ended_by}")
        if event.what in ("fail", "dead") and (event.what == "dead") != (item.attempts == MAX_ATTEMPTS):
            self.fault(event, f"is told {event.what} after {item.attempts} attempts")
        if event.what == "unclaim":
            item.attempts -= 1
        item.state = event.what if event.what in ("done", "dead") else "waits"
        item.due = event.due if event.what == "fail" else None
        if event.what in ("done", "dead") and self.heads.get(item.unit) is item:
            del self.heads[item.unit]
        if event.what == "done" and item.id in self.units[item.unit]:
            del self.units[item.unit][item.id]

    def requeue(self, event, item):
        if item.state != "dead" and not self.may_be_dead(item, event.at):
            self.fault(event, f"is requeued though it is {item.state}")
        if self.heads.get(item.unit) is item:
            del self.heads[item.unit]
        item.state, item.attempts, item.due = "ready", 0, None
        item.low, item.high = event.began, self.committed.get(event.token, math.inf)
