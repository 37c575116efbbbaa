"""How the verbs wait: for news, for their turn, and for the tasks that go on without their caller."""

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Hashable
from typing import Any


class Waiting:
    """What the verbs of a keeper wait for. Everything runs in one event loop, so what is done between two awaits is
    done at once."""

    def __init__(self) -> None:
        self.asks = 0  # grows whenever all scopes must ask: note it before a call, wait for a greater one after it
        self._change: asyncio.Future[None] | None = None  # what is waited for; replaced by each change
        self.turns: set[Hashable] = set()  # the names that a task is about
        self._tasks: set[asyncio.Task[Any]] = set()

    async def until(self, condition: Callable[[], bool], timeout: float = math.inf) -> bool:
        """Waits for a condition that may change whenever `poke` is called. Returns False after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while not condition():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._change = self._change or asyncio.get_running_loop().create_future()
            await asyncio.wait({self._change}, timeout=left if left < math.inf else None)
        return True

    def poke(self) -> None:
        """Has all that wait look again."""
        change, self._change = self._change, None
        if change is not None:
            change.set_result(None)

    def ask(self) -> None:
        """Has all scopes ask."""
        self.asks += 1
        self.poke()

    def spawn(self, work: Coroutine[Any, Any, Any], turn: Hashable = None) -> asyncio.Task[Any]:
        """Starts a task that goes on if its caller is cancelled. If it has its turn with a name until it ends, a drain
        waits for it."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        if turn is not None:
            self.turns.add(turn)

        def end(_: asyncio.Task[Any]) -> None:
            self._tasks.discard(task)
            self.turns.discard(turn)
            if not task.cancelled():
                task.exception()  # looked at, as its caller may be gone
            self.poke()

        task.add_done_callback(end)
        return task
