"""A scope: what a verb hands out, and the transactions of the work under it. It ends once, and is never alive again."""

import asyncio
import contextlib
import math
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

from ._drivers import Statement, sqlstate_of
from ._errors import FENCE_REFUSED, Lost, is_answer, meaning
from ._keeper import Keeper

FENCE_CHECK = Statement("SELECT eskit_lease.fence_check(CAST(%s AS text), CAST(%s AS bigint))")
# Fails if the transaction has. Drivers do not tell that a COMMIT was answered by ROLLBACK.
STILL_GOOD = Statement("SELECT 1")

# Before 3.12 `asyncio.wait_for` may swallow a cancel that comes as its own work ends.
CANCEL_AGAIN = 1.0 if sys.version_info < (3, 12) else None  # seconds


class Scope:
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
        keeper.cancels.add(self.cancel)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} fence={self.fence}{f' ended: {self._why}' if self._why else ''}>"

    @property
    def trusted(self) -> bool:
        """Whether work may begin under this scope: it has not ended, and the last answer may still be believed."""
        return not self.ended and self._keeper.is_trusted(self.session)

    @property
    def ended(self) -> bool:
        """Whether the scope has ended: it was cancelled, or left, or a commit is unsure."""
        return self._why is not None

    @property
    def draining(self) -> bool:
        """Whether the keeper drains: finish what you have begun, and leave."""
        return self._keeper.draining

    async def news(self, timeout: float = math.inf) -> bool:
        """Waits for a reason to look again: a change of leases or partitions, an event in the table that the keeper
        watches, the begin of a drain, or the end of this scope.

        For a loop that reads until it finds nothing, then waits: returns at once if there was news since the scope
        began, or since `news` returned last. Returns False after `timeout` seconds without news.
        """
        told = await self._keeper.until(lambda: self._keeper.asks > self._read_at or self.ended, timeout)
        self._read_at = self._keeper.asks
        return told

    def cancel(self, why: str) -> None:
        """Ends the scope, whatever the work does. The keeper calls this, and `unsure`."""
        self._why = self._why or why  # at once, for the next guard
        self._keeper.in_loop(self._tell)

    def unsure(self) -> None:
        """Says that the end of a commit under this scope is unknown. The scope ends, so that the next one begins under
        a new fence. `transaction` does this by itself. Leave the scope then."""
        self.cancel("the end of a commit is unknown")

    def _tell(self) -> None:
        if not self.cancelled.is_set():
            self.cancelled.set()
            self._keeper.poke()
            if self._interrupt is not None:
                self._interrupt()

    def _end(self) -> None:
        """Says that the work has ended by itself."""
        self._why = self._why or "it was left"
        self._keeper.cancels.discard(self.cancel)

    def _loss(self) -> Lost:
        return Lost(f"{self.name}: {self._why or 'the trust is over'}", resource=self.name, fence=self.fence)

    def _require(self) -> None:
        if not self.trusted:
            raise self._loss()

    async def _fetch(self, tx: Any, statement: Statement, *params: Any) -> Any:
        """Runs one of this library's statements in a transaction of the work. Its own fence refused ends the scope."""
        self._require()
        try:
            value = await self._keeper.driver.fetch(tx, statement, *params)
        except Exception as error:
            if sqlstate_of(error) == FENCE_REFUSED:
                self.cancel("the fence is no longer valid")
            raise meaning(error, self.name, self.fence, ours=True)  # noqa: B904 (it has its cause)
        self._require()  # the trust may have run out meanwhile
        return value

    @contextlib.asynccontextmanager
    async def _transaction(self, tx: Any, *, first: Any = None, last: Any = None) -> AsyncIterator[Any]:
        """Begins, runs the statement `first`, the block and the statement `last`, each with its parameters, and
        commits."""
        self._require()
        driver, is_committing = self._keeper.driver, False
        try:
            async with driver.block(tx):
                if first is not None:
                    await self._fetch(tx, *first)
                yield tx
                await (driver.fetch(tx, STILL_GOOD) if last is None else self._fetch(tx, *last))
                is_committing = True
            if not is_committing:  # as psycopg's block ends after a `Rollback`
                raise RuntimeError("the transaction is rolled back, as its block was left early")
        except BaseException as error:
            is_unsure = is_committing and not is_answer(error)
            if is_unsure:
                self.unsure()
            if not isinstance(error, Exception):  # the work was cancelled meanwhile
                raise
            raise meaning(error, self.name, self.fence, unsure=is_unsure)  # noqa: B904 (it has its cause)


class Fenced(Scope):
    """A scope whose fence a transaction can check: a lead or a partition."""

    async def guard(self, tx: Any) -> None:
        """Asserts to the end of the transaction of `tx` that this scope's fence holds. Call it first in each
        transaction that writes, before you read what the writes depend on.

        `tx`: a connection of psycopg or asyncpg, or a session or connection of SQLAlchemy.
        Raises `Lost`, `Refused`, RuntimeError for a connection in autocommit without a transaction, and other errors of
        the driver unchanged.
        """
        await self._fetch(tx, FENCE_CHECK, self.name, self.fence)

    def transaction(self, tx: Any) -> contextlib.AbstractAsyncContextManager[Any]:
        """A block that is one transaction on `tx`: begins it, guards it, and commits it at the end of the block.

        Raises, beside the errors of `guard` and of the block: `Lost` and `Refused` for errors within the block that
        mean so, `Unsure` if the connection breaks before COMMIT is answered, and RuntimeError if `tx` is in a
        transaction.
        """
        return self._transaction(tx, first=(FENCE_CHECK, self.name, self.fence))


class interrupted_by:
    """A block whose task is cancelled when a scope is. It raises `Lost` then. It knows its own cancels, as
    `asyncio.timeout` does."""

    def __init__(self, scope: Scope) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._scope, self._task, self._sent, self._others = scope, task, 0, 0
        self._again: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        if self._scope.cancelled.is_set():
            raise self._scope._loss()
        if sys.version_info >= (3, 11):
            self._others = self._task.cancelling()
        self._scope._interrupt = self._send

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._scope._interrupt = None
        if self._again is not None:
            self._again.cancel()
        left = 0
        if sys.version_info >= (3, 11):
            for _sent in range(self._sent):
                left = self._task.uncancel()
        if isinstance(error, asyncio.CancelledError) and self._sent > 0 and left <= self._others:
            raise self._scope._loss() from error

    def _send(self) -> None:
        if self._task is not asyncio.current_task():  # else the work itself said `unsure`, and leaves
            self._sent += 1
            self._task.cancel()
        if CANCEL_AGAIN is not None:
            self._again = asyncio.get_running_loop().call_later(CANCEL_AGAIN, self._send)
