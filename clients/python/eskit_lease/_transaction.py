"""Transactions of the work under a scope: the check of the fence, and what became of the commit."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from ._drivers import Statement, block, fetch
from ._errors import FENCE_REFUSED, Unsure, is_answer, meaning, sqlstate_of

FENCE_CHECK = Statement("SELECT eskit_lease.fence_check(CAST(%s AS text), CAST(%s AS bigint))")
# Fails if the transaction has. Drivers do not tell that a COMMIT was answered by ROLLBACK.
STILL_GOOD = Statement("SELECT 1")

Call = tuple[Any, ...]  # a statement and its parameters


class Working(abc.ABC):
    """A scope as its transactions see it, with asyncio and without."""

    name: str
    fence: int

    async def _run(self, tx: Any, statement: Statement, *params: Any) -> Any:
        return await fetch(tx, statement, *params)

    def _block(self, tx: Any) -> contextlib.AbstractAsyncContextManager[Any]:
        return block(tx)

    @abc.abstractmethod
    def cancel(self, why: str) -> None:
        """Ends the scope, whatever the work does."""

    @abc.abstractmethod
    def _require(self) -> None:
        """Raises `Lost` if the scope has ended."""

    def unsure(self) -> None:
        """Says that the end of a commit under this scope is unknown. The scope ends, so that the next one begins under
        a new fence. `transaction` does this by itself. Leave the scope then."""
        self.cancel("the end of a commit is unknown")

    async def _fetch(self, tx: Any, statement: Statement, *params: Any) -> Any:
        """Runs one of this library's statements in a transaction of the work. Its own fence refused ends the scope."""
        self._require()
        try:
            value = await self._run(tx, statement, *params)
        except Exception as error:
            if sqlstate_of(error) == FENCE_REFUSED:
                self.cancel("the fence is no longer valid")
            told = meaning(error, self.name, self.fence, ours=True)
            raise told  # noqa: B904 (it has its cause)
        self._require()
        return value

    @contextlib.asynccontextmanager
    async def _transaction(self, tx: Any, first: Call | None, last: Call | None = None) -> AsyncIterator[Any]:
        """Begins, runs the statement `first`, the block and the statement `last`, and commits."""
        self._require()
        is_committing = False
        try:
            async with self._block(tx):
                if first is not None:
                    await self._fetch(tx, *first)
                yield tx
                await (self._run(tx, STILL_GOOD) if last is None else self._fetch(tx, *last))
                is_committing = True
            if not is_committing:  # as psycopg's block ends after a `Rollback`
                raise RuntimeError("the transaction is rolled back, as its block was left early")
        except BaseException as error:
            is_unsure = is_committing and not is_answer(error)
            if is_unsure:
                self.unsure()
            if not isinstance(error, Exception):  # the work was cancelled meanwhile
                raise
            told = meaning(error, self.name, self.fence, ours=False)
            if is_unsure:
                text = f"{self.name}: the end of a commit is unknown: {error}"
                told = Unsure(text, resource=self.name, fence=self.fence, sqlstate=sqlstate_of(error))
                told.__cause__ = error
            raise told  # noqa: B904 (it has its cause)
