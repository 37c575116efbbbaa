"""How the verbs wait: for news, for their turn, and for the tasks that go on without their caller."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from typing import Any, TypeVar

T = TypeVar("T")


async def outcome(work: Awaitable[object]) -> BaseException | None:
    """Runs work of the user in a task of its own, and returns the error with which it has ended. So a CancelledError
    that the work itself has raised does not look like one for the task that waits."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:  # the event loop ends
        task.cancel()
        raise
    return asyncio.CancelledError("a task that it waits for was cancelled") if task.cancelled() else task.exception()


class Waiting:
    """What the verbs of a keeper wait for. Everything runs in one event loop, so what is done between two awaits is
    done at once."""

    def __init__(self) -> None:
        self.asks = 0  # grows whenever all scopes must ask: note it before a call, wait for a greater one after it
        self._change = asyncio.Event()  # replaced by each change
        self._turns: set[Hashable] = set()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def until(self, condition: Callable[[], bool], timeout: float | None = None) -> bool:
        """Waits for a condition that may change whenever `poke` is called. Returns False after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not condition():
            timer = None
            if deadline is not None:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                timer = asyncio.get_running_loop().call_later(left, self.poke)
            try:
                await self._change.wait()
            finally:
                if timer is not None:
                    timer.cancel()
        return True

    def poke(self) -> None:
        """Has all that wait look again."""
        self._change.set()
        self._change = asyncio.Event()

    def ask(self) -> None:
        """Has all scopes ask."""
        self.asks += 1
        self.poke()

    def is_taken(self, name: Hashable) -> bool:
        return name in self._turns

    def spawn(self, work: Coroutine[Any, Any, T], turn: Hashable = None) -> asyncio.Task[T]:
        """Starts a task that goes on if its caller is cancelled, and that a drain waits for. Until it ends it has its
        turn with a name."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        if turn is not None:
            self._turns.add(turn)

        def end(_: asyncio.Task[T]) -> None:
            self._tasks.discard(task)
            self._turns.discard(turn)
            if not task.cancelled():
                task.exception()  # looked at, as its caller may be gone
            self.poke()

        task.add_done_callback(end)
        return task
