"""Leading: one process at a time holds a name."""

from ._keeper import LONGEST_PAUSE, Keeper
from ._scope import Fenced
from ._verb import Tenure

ACQUIRE = "SELECT fence, trust_ms, reason FROM eskit_lease.lease_acquire(%s::text, %s::uuid, queue => %s)"
RELEASE = "SELECT eskit_lease.lease_release(%s::text, %s::bigint)"
RELEASE_ANY = "SELECT eskit_lease.lease_release_many(ARRAY[%s::text], %s::uuid)"
CANCEL = "SELECT eskit_lease.lease_cancel(%s::text, %s::uuid)"


class Lead(Fenced):
    """The leadership of a name."""


class Leading(Tenure["Lead | None"]):
    """Waits for leadership, and keeps it for a caller. Without `waits`, gives None if it cannot be had at once."""

    def __init__(self, keeper: Keeper, name: str, *, waits: bool = True) -> None:
        super().__init__(keeper, "lease", name)
        self._waits = waits
        self.passing = self.passing if waits else ()
        self._lead: Lead | None = None
        self._stray: str | None = None  # the session that may have a place in line, or the lease without a scope

    def may_lead(self) -> bool:
        """Whether it is worth to ask. Raises `Closed`."""
        self.keeper.require_open()
        return self.turn not in self.keeper.turns and self.keeper.is_trusted()

    async def look(self, session: str) -> bool:
        """Asks for the lease. While it leads, it asks without a place in line, which could bring the lease back when
        nothing wants it any more."""
        keeper, lead = self.keeper, self._lead
        if lead is not None and lead.ended:
            return False
        self._stray = session  # whatever the answer brings
        answer = (await keeper.call(session, ACQUIRE, self.name, session, self._waits and lead is None))[0]
        fence, reason = answer["fence"], answer["reason"]
        if lead is not None:
            if (fence, reason) == (lead.fence, "already_held"):
                self._stray = None
            else:
                lead.cancel(f"the lease is lost: {reason}")
            return False
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
