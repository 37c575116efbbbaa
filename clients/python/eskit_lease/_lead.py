"""Leading: one process at a time holds a name."""

from ._errors import SERVER_STATE
from ._keeper import LONGEST_PAUSE, Keeper
from ._line import Row
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
        super().__init__(keeper, "lease", name)
        self._waits = waits
        if waits:
            self.PASSING = (SERVER_STATE,)
        self._lead: Lead | None = None
        self._stray: str | None = None  # the session that may have a place in line, or the lease without a scope

    def may_lead(self) -> bool:
        """Whether it is worth to ask. Raises `Closed`."""
        self.keeper.require_open()
        return self.turn not in self.keeper.turns and self.keeper.is_trusted()

    async def run(self) -> None:
        try:
            await self.follow(self._look)
            lead = self._lead
            if lead is not None:
                await self.follow(lambda _: self._mind(lead), to_the_end=True)
        finally:
            keeper = self.keeper
            if self._lead is not None:
                self._lead._end()
                if await keeper.give_back(self._lead.session, RELEASE, self.name, self._lead.fence):
                    keeper.used.pop(self.turn, None)
                else:
                    self._stray = self._lead.session
            stray = self._stray
            if stray is not None:
                await keeper.give_back(stray, CANCEL, self.name, stray)
                await keeper.give_back(stray, RELEASE_ANY, self.name, stray)  # also a grant that crossed the cancel

    async def _look(self, session: str) -> bool:
        self._stray = session
        answer = await self._ask(session, queue=self._waits)
        fence = answer["fence"]
        if fence is None and not self._waits:
            self._stray = None
        is_used = fence is not None and fence == self.keeper.used.get(self.turn)  # its release was refused
        if is_used and await self.keeper.give_back(session, RELEASE_ANY, self.name, session):
            self.look_in(0)
            return False
        if fence is not None and not is_used and not self.is_left and self.keeper.may_begin(session):
            self.keeper.used[self.turn] = fence
            self._lead, self._stray = Lead(self.keeper, self.name, fence, session), None
        elif self._waits:
            if answer["reason"] != "queued":  # without a place in line no news tells of the next chance
                self.look_in(LONGEST_PAUSE)
            return False
        self.give(self._lead)
        return True

    async def _mind(self, lead: Lead) -> bool:
        """Cancels the scope if the lease is no longer held as before. Asks without a place in line, which could bring
        the lease back when nothing wants it any more."""
        if lead.ended:
            return False
        answer = await self._ask(lead.session, queue=False)
        if answer["reason"] != "already_held" or answer["fence"] != lead.fence:
            self._stray = lead.session  # it may have been granted anew, under a fence that no scope has
            lead.cancel(f"the lease is lost: {answer['reason']}")
        return False

    async def _ask(self, session: str, *, queue: bool) -> Row:
        return (await self.keeper.call(session, ACQUIRE, self.name, session, queue))[0]
