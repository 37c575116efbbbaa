"""The drain of a consumer group as pyfly's event bus has it, under a lease instead of an advisory lock.

pyfly's PostgresEventBus delivers the events of a group while it holds `pg_try_advisory_lock` of the group's key. Bridge
the group's name to that key, once, as an administrator; then buses of both kinds share the group:

    SELECT eskit_lease.bridge_create('reports', eskit_lease.group_lock_key('reports'))
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from ._drivers import connected
from ._errors import Lost, Refused, Unsure
from ._leases import Leases

PAUSE = 0.2  # seconds, while a bus of the other kind has its turn


async def drain_group(
    leases: Leases,
    group: str,
    batch: Callable[[Any], Awaitable[bool]],
    connections: Callable[[], Any],
    *,
    wake: asyncio.Event | None = None,
    poll: float = 5.0,
) -> None:
    """Delivers the events of a group whenever this process leads it, until the caller is cancelled.

    Raises `Closed` once the keeper drains, and the errors of `batch` and of the driver: call it again after those.

    A batch is one transaction. No other bus of the group, of either kind, delivers before it has ended. If the process
    ends before the commit, the next bus delivers the batch again: at least once, as in pyfly.

    Args:
        leases: the keeper.
        group: the group's name, which is the name of the lease.
        batch: called with a connection in a transaction: reads the group's position, delivers the next events, moves
            the position, and returns whether there may be more.
        connections: as for `Leases.work`.
        wake: is set when there may be new events: by pyfly's listener, for instance.
        poll: seconds after which to look in any case.
    """
    wake = wake or asyncio.Event()
    while True:
        with contextlib.suppress(Lost, Unsure):
            async with leases.lead(group) as lead:
                while not lead.draining:
                    wake.clear()
                    try:
                        async with connected(connections) as db, lead.transaction(db):
                            more = await batch(db)
                    except Refused:  # a bus with the advisory lock comes first
                        await asyncio.sleep(PAUSE)
                        continue
                    if not more:
                        await _wait(wake, lead.news(), poll)


async def _wait(wake: asyncio.Event, news: Awaitable[object], poll: float) -> None:
    waiting = [asyncio.ensure_future(wake.wait()), asyncio.ensure_future(news)]
    try:
        await asyncio.wait(waiting, timeout=poll, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
