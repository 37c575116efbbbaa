"""Leading: one process at a time holds a name."""

from ._errors import SERVER_STATE
from ._keeper import LONGEST_PAUSE, Keeper
from ._scope import Fenced
from ._verb import Tenure

ACQUIRE = """SELECT fence, trust_ms, reason
             FROM eskit_lease.lease_acquire(%s::text, %s::uuid, queue => %s::boolean)"""
RELEASE = "SELECT eskit_lease.lease_release(%s::text, %s::bigint)"
RELEASE_ANY = "SELECT eskit_lease.lease_release_many(ARRAY[%s::text], %s::uuid)"
CANCEL = "SELECT eskit_lease.lease_cancel(%s::text, %s::uuid)"


class Lead(Fenced):
    """The leadership of a name."""


class Leading(Tenure["Lead | None"]):
    """Waits for leadership, and keeps it for a caller. Without `waits`, gives None if it cannot be had at once."""

    def __init__(self, keeper: Keeper, name: str, *, waits: bool = True) -> None:
        super().__init__(keeper, "lease", name, (SERVER_STATE,) if waits else ())
        self._waits = waits
        self._lead: Lead | None = None
        self._stray: str | None = None  # the session that may have a place in line, or the lease without a scope

    def may_lead(self) -> bool:
        """Whether it is worth to ask. Raises `Closed`."""
        self.keeper.require_open()
        return self.turn not in self.keeper.turns and self.keeper.is_trusted()

    async def look(self, session: str) -> bool:
        keeper, lead = self.keeper, self._lead
        if lead is not None:
            return await self._mind(lead)
        self._stray = session
        fence, reason = await self._ask(session, queue=self._waits)
        is_used = fence is not None and keeper.used.get(self.turn) == fence  # its release was refused
        if is_used and await keeper.give_back(session, RELEASE_ANY, self.name, session):
            self.look_in(0)
            return False
        if fence is not None and not is_used and not self.is_left and keeper.may_begin(session):
            keeper.used[self.turn] = fence
            self._lead, self._stray = Lead(keeper, self.name, fence, session), None
        elif self._waits:
            if reason != "queued":  # without a place in line no news tells of the next chance
                self.look_in(LONGEST_PAUSE)
            return False
        elif fence is None:
            self._stray = None
        self.give(self._lead)
        return self._lead is None

    async def _mind(self, lead: Lead) -> bool:
        """Cancels the scope if the lease is no longer held as before. Asks without a place in line, which could bring
        the lease back when nothing wants it any more."""
        if not lead.ended:
            fence, reason = await self._ask(lead.session, queue=False)
            if reason != "already_held" or fence != lead.fence:
                self._stray = lead.session  # it may have been granted anew, under a fence that no scope has
                lead.cancel(f"the lease is lost: {reason}")
        return False

    async def _ask(self, session: str, *, queue: bool) -> tuple[int | None, str]:
        answer = (await self.keeper.call(session, ACQUIRE, self.name, session, queue))[0]
        return answer["fence"], answer["reason"]

    async def end(self) -> None:
        keeper, lead = self.keeper, self._lead
        if lead is not None:
            lead._end()
            if await keeper.give_back(lead.session, RELEASE, self.name, lead.fence):
                keeper.used.pop(self.turn, None)
            else:
                self._stray = lead.session
        if self._stray is not None:
            await keeper.give_back(self._stray, CANCEL, self.name, self._stray)
            await keeper.give_back(self._stray, RELEASE_ANY, self.name, self._stray)  # also what crossed the cancel
