"""Leading: one process at a time holds a name."""

from __future__ import annotations

import psycopg

from ._errors import Closed, Lost
from ._keeper import LONGEST_PAUSE, Keeper
from ._scope import Fenced
from ._tenure import Tenure

ACQUIRE = """SELECT granted, fence, trust_ms, reason
             FROM eskit_lease.lease_acquire(%s::text, %s::uuid, queue => %s::boolean)"""
RELEASE = "SELECT eskit_lease.lease_release(%s::text, %s::bigint) AS done"
RELEASE_ANY = "SELECT (eskit_lease.lease_release_many(ARRAY[%s::text], %s::uuid)).released AS done"
CANCEL = "SELECT eskit_lease.lease_cancel(%s::text, %s::uuid) AS done"


class Lead(Fenced):
    """The leadership of a name."""


class Leading(Tenure["Lead | None"]):
    """Waits for leadership, and keeps it for a caller. Without `waits`, gives None if it cannot be had at once."""

    def __init__(self, keeper: Keeper, name: str, *, waits: bool = True) -> None:
        super().__init__(keeper, "lease", name)
        self._waits = waits

    def cannot(self) -> bool:
        """Whether there is no need to ask. Raises `Closed`."""
        self.keeper.require_open()
        return self.keeper.is_taken(self.turn) or not self.keeper.is_trusted()

    async def serve(self) -> None:
        keeper, session, lead = self.keeper, "", None
        try:
            while not self.is_left:
                asks = keeper.asks
                session = await keeper.ready()
                try:
                    answer = (await keeper.call(session, ACQUIRE, self.name, session, self._waits))[0]
                except Lost:
                    continue
                if answer["granted"]:
                    lead = Lead(keeper, self.name, answer["fence"], session)
                    if keeper.begin(lead, session):
                        self.given.set_result(lead)
                        await self._mind(lead, asks)
                        return
                elif self._waits:
                    # Without a place in line no news tells of the next chance.
                    pause = None if answer["reason"] == "queued" else LONGEST_PAUSE
                    await keeper.until(lambda: keeper.asks > asks or keeper.draining or self.is_left, pause)  # noqa: B023
                else:
                    self.given.set_result(None)
                    return
        finally:
            await self._give_back(session, lead)

    async def _mind(self, lead: Lead, asks: int) -> None:
        """Asks for the lease again whenever the keeper says so, and cancels the scope if it is no longer held as
        before. It asks without a place in line, which could bring the lease back when nothing wants it any more."""
        keeper = self.keeper
        while not self.is_left:
            await keeper.until(lambda: self.is_left or (keeper.asks > asks and not lead.ended))  # noqa: B023
            if self.is_left:
                return
            asks = keeper.asks
            try:
                answer = (await keeper.call(lead.session, ACQUIRE, lead.name, lead.session, False))[0]
            except (Lost, Closed):
                continue  # the keeper cancels the scope
            except psycopg.Error as error:
                keeper.warn("cannot ask for the lease %s: %s", lead.name, error)
                await keeper.until(lambda: self.is_left, LONGEST_PAUSE)
                asks = -1
                continue
            if answer["reason"] != "already_held" or answer["fence"] != lead.fence:
                lead.cancel(f"the lease is lost: {answer['reason']}")

    async def _give_back(self, session: str, lead: Lead | None) -> None:
        keeper = self.keeper
        if lead is not None:
            lead._end()
            if await keeper.give_back(session, RELEASE, self.name, lead.fence):
                return
        # Not granted so far, or lost: there may be a place in line, or the lease under another fence.
        if session and not await keeper.give_back(session, CANCEL, self.name, session):
            await keeper.give_back(session, RELEASE_ANY, self.name, session)
