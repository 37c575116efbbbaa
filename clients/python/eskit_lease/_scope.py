"""A scope: what a verb hands out. It ends once, and is never alive again."""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

from ._errors import Lost
from ._keeper import Keeper
from ._transaction import FENCE_CHECK, Call, Working

# Before 3.12 `asyncio.wait_for` may swallow a cancel that comes as its own work ends.
CANCEL_AGAIN = 1.0 if sys.version_info < (3, 12) else None  # seconds


class Scope(Working):
    """Something that this process owns under a fence, for as long as it is trusted.

    Attributes:
        name: the name of the lease, group, queue or key.
        fence: the fencing token. It is in the database what this scope is in the process.
        session: the uuid of the session that owns it. Keep it private.
        cancelled: is set when the scope is cancelled: the lease is lost, the trust is over, or the keeper closes.
    """

    def __init__(self, keeper: Keeper, name: str, fence: int, session: str) -> None:
        self.name, self.fence, self.session = name, fence, session
        self.cancelled = asyncio.Event()
        self._keeper = keeper
        self._why: str | None = None  # why it ended
        self._interrupt: Callable[[], None] | None = None
        self._read_at = keeper.asks  # the news that `news` has told
        keeper.scopes.add(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} fence={self.fence}{f' ended: {self._why}' if self._why else ''}>"

    @property
    def trusted(self) -> bool:
        """Whether work may begin under this scope: it has not ended, and the last answer may still be believed."""
        return self._why is None and self._keeper.is_trusted(self.session)

    @property
    def ended(self) -> bool:
        """Whether the scope has ended: it was cancelled, or left, or a commit is unsure."""
        return self._why is not None

    @property
    def draining(self) -> bool:
        """Whether the keeper drains: finish what you have begun, and leave."""
        return self._keeper.draining

    async def news(self) -> None:
        """Waits for a reason to look again: a change of leases or partitions, an event in the table that the keeper
        watches, the begin of a drain, or the end of this scope.

        For a loop that reads until it finds nothing, then waits: returns at once if there was news since the scope
        began, or since `news` returned last.
        """
        await self._news(math.inf)

    def cancel(self, why: str) -> None:
        """Ends the scope, whatever the work does. The keeper calls this, and `unsure`."""
        self._why = self._why or why
        if not self.cancelled.is_set():
            self.cancelled.set()
            self._keeper.poke()
            if self._interrupt is not None:
                self._interrupt()

    async def _news(self, timeout: float) -> bool:
        told = await self._keeper.until(lambda: self._keeper.asks > self._read_at or self.ended, timeout)
        self._read_at = self._keeper.asks
        return told

    def _end(self) -> None:
        """Says that the work has ended by itself."""
        self._why = self._why or "it was left"
        self._keeper.scopes.discard(self)

    def _loss(self) -> Lost:
        return Lost(f"{self.name}: {self._why or 'the trust is over'}", resource=self.name, fence=self.fence)

    def _require(self) -> None:
        if not self.trusted:
            raise self._loss()

    def _when_cancelled(self, interrupt: Callable[[], None] | None) -> None:
        """Has a function called when the scope is cancelled; at once, if it was."""
        self._interrupt = interrupt
        if interrupt is not None and self.cancelled.is_set():
            interrupt()


class Fenced(Scope):
    """A scope whose fence a transaction can check: a lead or a partition."""

    async def guard(self, tx: Any) -> None:
        """Asserts to the end of the transaction of `tx` that this scope's fence holds. Call it first in each
        transaction that writes, before you read what the writes depend on.

        `tx`: a connection of psycopg or asyncpg, or a session or connection of SQLAlchemy.
        Raises `Lost`, `Refused`, RuntimeError for a connection in autocommit without a transaction, and other errors of
        the driver unchanged.
        """
        await self._fetch(tx, *self._check())

    def transaction(self, tx: Any) -> contextlib.AbstractAsyncContextManager[Any]:
        """A block that is one transaction on `tx`: begins it, guards it, and commits it at the end of the block.

        Raises, beside the errors of `guard` and of the block: `Lost` and `Refused` for errors within the block that
        mean so, `Unsure` if the connection breaks before COMMIT is answered, and RuntimeError if `tx` is in a
        transaction.
        """
        return self._transaction(tx, self._check())

    def _check(self) -> Call:
        return FENCE_CHECK, self.name, self.fence


class _Interrupt:
    """Cancels the current task when a scope is cancelled, and knows its own cancels, as `asyncio.timeout` does."""

    def __init__(self, scope: Scope) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._scope, self._task, self._sent = scope, task, 0
        self._others = 0
        if sys.version_info >= (3, 11):
            self._others = task.cancelling()
        self._again: asyncio.TimerHandle | None = None
        scope._when_cancelled(self.send)

    def send(self) -> None:
        if self._task is not asyncio.current_task():  # else the work itself said `unsure`, and leaves
            self._sent += 1
            self._task.cancel()
        if CANCEL_AGAIN is not None:
            self._again = asyncio.get_running_loop().call_later(CANCEL_AGAIN, self.send)

    def settle(self) -> bool:
        """Ends this. Returns whether a CancelledError of the task is its own."""
        self._scope._when_cancelled(None)
        if self._again is not None:
            self._again.cancel()
        sent, self._sent, left = self._sent, 0, 0
        if sys.version_info >= (3, 11):
            for _ in range(sent):
                left = self._task.uncancel()
        return sent > 0 and left <= self._others


@contextlib.contextmanager
def interrupted_by(scope: Scope) -> Iterator[None]:
    """A block whose task is cancelled when the scope is. It raises `Lost` then."""
    if scope.cancelled.is_set():
        raise scope._loss()
    interrupt = _Interrupt(scope)
    try:
        yield
    except asyncio.CancelledError as error:
        if interrupt.settle():
            raise scope._loss() from error
        raise
    finally:
        interrupt.settle()
