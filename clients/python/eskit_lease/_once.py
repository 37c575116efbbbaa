"""Run-once keys: a function is called once for a key, whoever asks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import psycopg

from ._errors import Closed, Lost, Unsure, meaning
from ._keeper import Keeper, log
from ._line import Row
from ._scope import Scope, interrupted_by

BEGIN = """SELECT first, state, fence, result::text
           FROM eskit_lease.execution_begin(%s::text, %s::uuid, retry_in_doubt => %s::boolean)"""
FINISH = "SELECT eskit_lease.execution_finish(%s::text, %s::bigint, %s::jsonb) AS done"
FAIL = "SELECT eskit_lease.execution_fail(%s::text, %s::bigint, %s::text, retry => %s::boolean) AS done"

NOT_BEGUN = "its caller stopped waiting before it began"


@dataclass(frozen=True)
class Outcome:
    """What became of a key."""

    first: bool
    """Whether this call has run the function."""
    state: str
    """done; or, if another call has run it or runs it: running, failed (until an administrator resolves the key) or
    in_doubt (the process that ran it has ended, and nobody knows how far it came)."""
    result: Any = None
    """What the function has returned, as JSON has it, if the state is done."""


class Execution(Scope):
    """The one run of a key.

    Attributes:
        key: the key; `name` is the same.
    """

    def __init__(self, keeper: Keeper, key: str, fence: int, session: str, *, retry_in_doubt: bool) -> None:
        super().__init__(keeper, key, fence, session)
        self.key = key
        self._retry_in_doubt = retry_in_doubt


async def begin(keeper: Keeper, key: str, *, retry_in_doubt: bool) -> Execution | Outcome:
    """Begins the run of a key, or tells what became of it. `finish` or `fail` must follow a run."""
    await keeper.take_turn(_turn(key))
    session, asking = None, None
    try:
        while True:
            session = await keeper.ready()
            asking = keeper.spawn(keeper.call(session, BEGIN, key, session, retry_in_doubt))
            try:
                answer = (await asyncio.shield(asking))[0]
            except Lost:
                continue
            if answer["fence"] is None:
                keeper.pass_turn(_turn(key))
                return Outcome(False, answer["state"], _loads(answer["result"]))
            execution = Execution(keeper, key, answer["fence"], session, retry_in_doubt=retry_in_doubt)
            if keeper.begin(execution, session):
                return execution
            await asyncio.shield(keeper.spawn(_fail(keeper, session, key, answer["fence"], NOT_BEGUN, True)))
    except BaseException:
        keeper.spawn(_give_up(keeper, key, session, asking))
        raise


async def finish(execution: Execution, result: Any) -> Outcome:
    """Keeps the result of the function. Raises `Lost`, `Refused` if the run is over, and TypeError or ValueError if
    JSON cannot have the result."""
    keeper, key, fence = execution._keeper, execution.key, execution.fence
    try:
        try:
            text = json.dumps(result)
        except (TypeError, ValueError) as error:  # the function has run, and must not run again
            await _fail(keeper, execution.session, key, fence, _text(error), False)
            raise
        try:
            await keeper.call(execution.session, FINISH, key, fence, text)
        except (psycopg.Error, Lost) as error:
            told = meaning(error, key, fence, ours=False)
            if told is error:
                raise
            raise told from error
        return Outcome(True, "done", json.loads(text))
    finally:
        execution._end()
        keeper.pass_turn(_turn(key))


async def fail(execution: Execution, error: BaseException) -> None:
    """Says that the function has failed, and lets the next call run it again; unless it is in doubt how far it came."""
    is_clear = isinstance(error, Exception) and not isinstance(error, (Lost, Unsure))
    retry = is_clear or execution._retry_in_doubt
    keeper = execution._keeper
    try:
        await _fail(keeper, execution.session, execution.key, execution.fence, _text(error), retry)
    finally:
        execution._end()
        keeper.pass_turn(_turn(execution.key))


async def once(
    keeper: Keeper, key: str, function: Callable[[Execution], Awaitable[Any]], *, retry_in_doubt: bool
) -> Outcome:
    """Runs the function if this is the call that may."""
    begun = await begin(keeper, key, retry_in_doubt=retry_in_doubt)
    if isinstance(begun, Outcome):
        return begun
    try:
        with interrupted_by(begun):
            result = await function(begun)
    except BaseException as error:
        await asyncio.shield(keeper.spawn(fail(begun, error)))
        raise
    return await asyncio.shield(keeper.spawn(finish(begun, result)))


async def _give_up(keeper: Keeper, key: str, session: str | None, asking: asyncio.Task[list[Row]] | None) -> None:
    """Gives back a run that was given as its caller stopped waiting."""
    try:
        if session is not None and asking is not None:
            await asyncio.wait({asking})
            if asking.exception() is None and (fence := asking.result()[0]["fence"]) is not None:
                await _fail(keeper, session, key, fence, NOT_BEGUN, True)
    finally:
        keeper.pass_turn(_turn(key))


async def _fail(keeper: Keeper, session: str, key: str, fence: int, text: str, retry: bool) -> None:
    try:
        await keeper.call(session, FAIL, key, fence, text, retry)
    except (Lost, Closed):
        pass  # the key is in doubt
    except psycopg.Error as error:
        log.warning("%s: %s: %s", keeper.settings.name, key, error)


def _loads(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _turn(key: str) -> tuple[str, str]:
    return "key", key
