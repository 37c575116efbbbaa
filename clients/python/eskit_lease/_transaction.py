"""Transactions of the work under a scope: the check of the fence, and what became of the commit."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

from ._drivers import Statement, block, block_sync, fetch, fetch_sync
from ._errors import FENCE_REFUSED, Unsure, is_answer, meaning, sqlstate_of

FENCE_CHECK = Statement("SELECT eskit_lease.fence_check(CAST(%s AS text), CAST(%s AS bigint))")
# Fails if the transaction has. Drivers do not tell that a COMMIT was answered by ROLLBACK.
STILL_GOOD = Statement("SELECT 1")

Call = tuple[Any, ...]  # a statement and its parameters


class Working(abc.ABC):
    """A scope as its transactions see it, with asyncio and without."""

    name: str
    fence: int

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
        """Runs one of this library's statements in a transaction of the work."""
        self._require()
        with self._telling(ours=True):
            value = await fetch(tx, statement, *params)
        self._require()
        return value

    def _fetch_sync(self, tx: Any, statement: Statement, *params: Any) -> Any:
        self._require()
        with self._telling(ours=True):
            value = fetch_sync(tx, statement, *params)
        self._require()
        return value

    @contextlib.asynccontextmanager
    async def _transaction(self, tx: Any, first: Call | None, last: Call | None = None) -> AsyncIterator[Any]:
        """Begins, runs the statement `first`, the block and the statement `last`, and commits."""
        self._require()
        with self._committing() as commit:
            async with block(tx):
                if first is not None:
                    await self._fetch(tx, *first)
                yield tx
                if last is not None:
                    await self._fetch(tx, *last)
                else:
                    await fetch(tx, STILL_GOOD)
                commit.is_next = True
            commit.require()

    @contextlib.contextmanager
    def _transaction_sync(self, tx: Any, first: Call | None, last: Call | None = None) -> Iterator[Any]:
        self._require()
        with self._committing() as commit:
            with block_sync(tx):
                if first is not None:
                    self._fetch_sync(tx, *first)
                yield tx
                if last is not None:
                    self._fetch_sync(tx, *last)
                else:
                    fetch_sync(tx, STILL_GOOD)
                commit.is_next = True
            commit.require()

    @contextlib.contextmanager
    def _telling(self, *, ours: bool) -> Iterator[None]:
        """Raises `Lost` or `Refused` for the driver's errors that mean so. Its own fence refused ends the scope."""
        try:
            yield
        except Exception as error:
            told = meaning(error, self.name, self.fence, ours=ours)
            if ours and sqlstate_of(error) == FENCE_REFUSED:
                self.cancel("the fence is no longer valid")
            if told is error:
                raise
            raise told from error

    @contextlib.contextmanager
    def _committing(self) -> Iterator[_Commit]:
        """Raises `Unsure` for an error of a commit that the server has not answered, and ends the scope."""
        commit = _Commit()
        try:
            with self._telling(ours=False):
                yield commit
        except BaseException as error:
            if not commit.is_next or is_answer(error):
                raise
            self.unsure()
            if not isinstance(error, Exception):  # the work was cancelled meanwhile
                raise
            told = f"{self.name}: the end of a commit is unknown: {error}"
            raise Unsure(told, resource=self.name, fence=self.fence, sqlstate=sqlstate_of(error)) from error


class _Commit:
    """Whether what comes next in a transaction is its COMMIT."""

    is_next = False

    def require(self) -> None:
        """Raises if the driver's block has ended early without an error, as psycopg's does after a `Rollback`."""
        if not self.is_next:
            raise RuntimeError("the transaction is rolled back, as its block was left early")
