"""Leading: one process at a time holds a name."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import psycopg

from ._errors import Closed, Lost
from ._keeper import LONGEST_PAUSE, Keeper, log
from ._line import Row
from ._scope import Fenced, interrupted_by

ACQUIRE = """SELECT granted, fence, trust_ms, reason
             FROM eskit_lease.lease_acquire(%s::text, %s::uuid, queue => %s::boolean)"""
RELEASE = "SELECT eskit_lease.lease_release(%s::text, %s::bigint) AS done"
RELEASE_ANY = "SELECT released AS done FROM eskit_lease.lease_release_many(ARRAY[%s::text], %s::uuid)"
CANCEL = "SELECT eskit_lease.lease_cancel(%s::text, %s::uuid) AS done"


class Lead(Fenced):
    """The leadership of a name."""

    _minder: asyncio.Task[None]


async def acquire(keeper: Keeper, name: str, *, wait: bool) -> Lead | None:
    """Waits for leadership; without `wait`, returns None if it cannot be had at once.

    A caller that is cancelled gives its place up, and what was granted meanwhile.
    """
    turn = _turn(name)
    keeper.require_open()
    if not wait and (keeper.is_taken(turn) or not keeper.is_trusted()):
        return None
    await keeper.take_turn(turn)
    session: str | None = None
    asking: asyncio.Task[list[Row]] | None = None
    try:
        while True:
            asks = keeper.asks
            session = await keeper.ready()
            asking = keeper.spawn(keeper.call(session, ACQUIRE, name, session, wait))
            try:
                answer = (await asyncio.shield(asking))[0]
            except Lost:
                continue
            if answer["granted"]:
                lead = Lead(keeper, name, answer["fence"], session)
                if keeper.begin(lead, session):
                    lead._minder = keeper.spawn(_mind(keeper, lead, asks))
                    return lead
            elif not wait:
                keeper.pass_turn(turn)
                return None
            else:
                # Without a place in line no news tells of the next chance.
                pause = None if answer["reason"] == "queued" else LONGEST_PAUSE
                await keeper.asked(asks, pause)
    except BaseException:
        keeper.spawn(_give_up(keeper, name, session, asking))
        raise


async def release(keeper: Keeper, lead: Lead) -> None:
    """Gives the name back, once the work has ended. The next call of this process for the name begins after this."""
    lead._end()
    await asyncio.wait({lead._minder})  # it would acquire the lease again
    try:
        # The end of the session releases everything.
        if not keeper.closing and not await _done(keeper, lead.session, RELEASE, lead.name, lead.fence):
            # Lost under this fence. But the session may have been granted the lease again, when it asked.
            await _done(keeper, lead.session, RELEASE_ANY, lead.name, lead.session)
    finally:
        keeper.pass_turn(_turn(lead.name))


@contextlib.asynccontextmanager
async def leading(keeper: Keeper, name: str) -> AsyncIterator[Lead]:
    """Waits for leadership, and leads for the length of the block."""
    lead = await acquire(keeper, name, wait=True)
    assert lead is not None
    async with _led(keeper, lead):
        yield lead


@contextlib.asynccontextmanager
async def leading_now(keeper: Keeper, name: str) -> AsyncIterator[Lead | None]:
    """Leads for the length of the block, or gives None if it cannot at once."""
    lead = await acquire(keeper, name, wait=False)
    if lead is None:
        yield None
        return
    async with _led(keeper, lead):
        yield lead


@contextlib.asynccontextmanager
async def _led(keeper: Keeper, lead: Lead) -> AsyncIterator[None]:
    try:
        with interrupted_by(lead):
            yield
    finally:
        await asyncio.shield(keeper.spawn(release(keeper, lead)))


async def _mind(keeper: Keeper, lead: Lead, asks: int) -> None:
    """Asks for the lease again whenever the keeper says so, and cancels the scope if it is no longer held as before.
    It asks without a place in line, which could bring the lease back when nothing wants it any more."""
    while await keeper.until(lambda: keeper.asks > asks or lead.ended):  # noqa: B023
        if lead.ended:
            return
        asks = keeper.asks
        try:
            answer = (await keeper.call(lead.session, ACQUIRE, lead.name, lead.session, False))[0]
        except (Lost, Closed):
            return  # the keeper cancels the scope
        except psycopg.Error as error:
            log.warning("%s: %s: cannot ask for the lease: %s", keeper.settings.name, lead.name, error)
            await keeper.until(lambda: lead.ended, LONGEST_PAUSE)
            asks = -1
        else:
            if answer["reason"] != "already_held" or answer["fence"] != lead.fence:
                lead.cancel(f"the lease is lost: {answer['reason']}")


async def _give_up(keeper: Keeper, name: str, session: str | None, asking: asyncio.Task[list[Row]] | None) -> None:
    """Gives up the place in line, or what was granted as the caller stopped waiting."""
    try:
        if asking is not None:
            await asyncio.wait({asking})
        if session is not None and not keeper.closing and not await _done(keeper, session, CANCEL, name, session):
            await _done(keeper, session, RELEASE_ANY, name, session)
    finally:
        keeper.pass_turn(_turn(name))


async def _done(keeper: Keeper, session: str, sql: str, *params: object) -> bool:
    """Runs a statement that says whether it has done something. It has nothing to do once the session has ended."""
    try:
        rows = await keeper.call(session, sql, *params)
        return bool(rows and rows[0]["done"])
    except (Lost, Closed):
        return True
    except psycopg.Error as error:
        log.warning("%s: %s: cannot release the lease: %s", keeper.settings.name, params[0], error)
        return False


def _turn(name: str) -> tuple[str, str]:
    return "lease", name
