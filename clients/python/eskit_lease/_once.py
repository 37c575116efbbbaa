"""Run-once keys: a function is called once for a key, whoever asks."""

import json
from dataclasses import dataclass
from typing import Any

from ._errors import Lost, Refused, Unsure, meaning
from ._keeper import Keeper
from ._scope import Scope
from ._verb import Tenure

BEGIN = "SELECT state, fence, result FROM eskit_lease.execution_begin(%s::text, %s::uuid, retry_in_doubt => %s)"
FINISH = "SELECT eskit_lease.execution_finish(%s::text, %s::bigint, %s::jsonb)"
FAIL = "SELECT eskit_lease.execution_fail(%s::text, %s::bigint, %s::text, retry => %s::boolean)"


@dataclass(frozen=True)
class Outcome:
    """What became of a key.

    Attributes:
        first: whether this call has run the function.
        state: done; or, if another call has run it or runs it: running, failed (until an administrator resolves the
            key) or in_doubt (the process that ran it has ended, and it is not known how far it came).
        result: what the function has returned, as JSON has it, if the state is done.
    """

    first: bool
    state: str
    result: Any = None


class Execution(Scope):
    """The one run of a key."""

    @property
    def key(self) -> str:
        return self.name


class Run(Tenure["Execution | Outcome"]):
    """Begins the run of a key for a caller, which leaves a result or an error; or tells what became of the key."""

    def __init__(self, keeper: Keeper, key: str, retry_in_doubt: bool) -> None:
        super().__init__(keeper, "key", key)
        self.result: Any = None  # of the function; afterwards as JSON has it
        self.is_kept = False  # the result is in the database
        self._retry_in_doubt = retry_in_doubt

    async def look(self, session: str) -> bool:
        keeper, key = self.keeper, self.name
        answer = (await keeper.call(session, BEGIN, key, session, self._retry_in_doubt))[0]
        fence = answer["fence"]
        if fence is None:
            self.give(Outcome(False, answer["state"], answer["result"]))
        elif keeper.used.get(self.turn) == fence:  # a run whose end could not be stored
            if not await self._fail(session, fence, RuntimeError("the end of its run could not be stored"), False):
                raise Refused(f"{key}: the end of its run cannot be stored", resource=key, fence=fence)
            self.look_in(0)
        elif self.is_left or not keeper.may_begin(session):
            await self._fail(session, fence, RuntimeError("it was not begun"), True)
        else:
            keeper.used[self.turn] = fence
            self.give(Execution(keeper, key, fence, session))
        return self.is_served

    async def end(self) -> None:
        if not (self.is_served and isinstance(self.given, Execution)):
            return
        keeper, key, session, fence = self.keeper, self.name, self.given.session, self.given.fence
        await keeper.until(lambda: self.is_left)
        try:
            if self.error is None:
                text = json.dumps(self.result)
                self.result = json.loads(text)
                await keeper.call(session, FINISH, key, fence, text)
                keeper.used.pop(self.turn, None)
                self.is_kept = True
            else:
                # An interrupted function may have done anything.
                is_clear = isinstance(self.error, Exception) and not isinstance(self.error, (Lost, Unsure))
                await self._fail(session, fence, self.error, is_clear or self._retry_in_doubt)
        except Exception as error:
            await self._fail(session, fence, error, False)  # the function must not run again
            raise meaning(error, key, fence)  # noqa: B904 (it has its cause)
        finally:
            self.given._end()

    async def _fail(self, session: str, fence: int, error: BaseException, retry: bool) -> bool:
        """Returns whether the run is over. If the session ends meanwhile, the key is in doubt."""
        if is_over := await self.keeper.fail(session, FAIL, self.name, fence, error, retry):
            self.keeper.used.pop(self.turn, None)
        return is_over
