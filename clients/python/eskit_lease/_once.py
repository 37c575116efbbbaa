"""Run-once keys: a function is called once for a key, whoever asks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ._errors import Closed, LeaseError, Lost, Refused, Unsure, meaning
from ._keeper import Keeper
from ._scope import Scope
from ._tenure import Tenure

BEGIN = """SELECT first, state, fence, result::text
           FROM eskit_lease.execution_begin(%s::text, %s::uuid, retry_in_doubt => %s::boolean)"""
FINISH = "SELECT eskit_lease.execution_finish(%s::text, %s::bigint, %s::jsonb) AS done"
FAIL = "SELECT eskit_lease.execution_fail(%s::text, %s::bigint, %s::text, retry => %s::boolean) AS done"


@dataclass(frozen=True)
class Outcome:
    """What became of a key."""

    first: bool
    """Whether this call has run the function."""
    state: str
    """done; or, if another call has run it or runs it: running, failed (until an administrator resolves the key) or
    in_doubt (the process that ran it has ended, and it is not known how far it came)."""
    result: Any = None
    """What the function has returned, as JSON has it, if the state is done."""


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

    async def serve(self) -> None:
        keeper, key = self.keeper, self.name
        while not self.is_left:
            session = await keeper.ready()
            try:
                answer = (await keeper.call(session, BEGIN, key, session, self._retry_in_doubt))[0]
            except Lost:
                continue
            if answer["fence"] is None:
                result = None if answer["result"] is None else json.loads(answer["result"])
                self.given.set_result(Outcome(False, answer["state"], result))
                return
            execution = Execution(keeper, key, answer["fence"], session)
            if keeper.used.get(key) == execution.fence:  # a run whose end could not be stored
                if not await self._fail(execution, RuntimeError("the end of its run could not be stored"), False):
                    raise Refused(f"{key}: the end of its run cannot be stored", resource=key, fence=execution.fence)
                continue
            if self.is_left or not keeper.begin(execution, session):
                await self._fail(execution, RuntimeError("it was not begun"), True)
                continue
            keeper.used[key] = execution.fence
            self.given.set_result(execution)
            try:
                await keeper.until(lambda: self.is_left)
                await self._finish(execution)
            finally:
                execution._end()
            return

    async def _finish(self, execution: Execution) -> None:
        if self.error is not None:
            # An interrupted function may have done anything.
            is_clear = isinstance(self.error, Exception) and not isinstance(self.error, (Lost, Unsure))
            await self._fail(execution, self.error, is_clear or self._retry_in_doubt)
            return
        try:
            text = json.dumps(self.result)
            self.result = json.loads(text)
            await self.keeper.call(execution.session, FINISH, execution.key, execution.fence, text)
        except Closed:
            raise
        except Exception as error:
            told = meaning(error, execution.key, execution.fence, ours=False)
            if isinstance(told, LeaseError):  # the run was over
                self.keeper.used.pop(execution.key, None)
            else:
                await self._fail(execution, error, False)  # the function must not run again
            if told is error:
                raise
            raise told from error
        self.keeper.used.pop(execution.key, None)
        self.is_kept = True

    async def _fail(self, execution: Execution, error: BaseException, retry: bool) -> bool:
        """Returns whether the run is over. If the session ends meanwhile, the key is in doubt."""
        is_over = await self.keeper.fail(execution.session, FAIL, execution.key, execution.fence, error, retry)
        if is_over:
            self.keeper.used.pop(execution.key, None)
        return is_over
