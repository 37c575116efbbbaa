"""The same verbs for programs without asyncio. The keeper runs in a thread of its own.

A thread cannot be interrupted. So a scope that is cancelled sets its event `cancelled`, and raises `Lost` at the next
guard: check it in long work.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from types import FrameType, TracebackType
from typing import Any, Generic, TypeVar

from . import _group, _lead, _once, _scope, _work
from ._errors import Closed, LeaseError, Lost, Refused, Unsure
from ._keeper import Keeper
from ._leases import DRAIN, SIGNALS, settings_of
from ._line import Connect
from ._once import Outcome
from ._transaction import FENCE_CHECK, Call, Working

__all__ = [
    "Closed",
    "Execution",
    "Item",
    "Lead",
    "LeaseError",
    "Leases",
    "Lost",
    "Outcome",
    "Partition",
    "Refused",
    "Scope",
    "Unsure",
]

CLOSED = "the keeper is closed"
MOMENT = 1.0  # seconds for what has nothing to wait for any more

T = TypeVar("T")
S = TypeVar("S", bound=_scope.Scope)


class Scope(Working, Generic[S]):
    """Something that this process owns under a fence, for as long as it is trusted.

    Attributes:
        name: the name of the lease, group, queue or key.
        fence: the fencing token.
        session: the uuid of the session that owns it. Keep it private.
        cancelled: a `threading.Event` that is set when the scope is cancelled: the lease is lost, the trust is over, or
            the keeper closes.
    """

    def __init__(self, scope: S, thread: _Thread) -> None:
        self.name, self.fence, self.session = scope.name, scope.fence, scope.session
        self.cancelled = threading.Event()
        self._scope, self._thread = scope, thread
        scope._when_cancelled(self.cancelled.set)

    def __repr__(self) -> str:
        return repr(self._scope)

    @property
    def trusted(self) -> bool:
        """Whether work may begin under this scope: it has not ended, and the last answer may still be believed."""
        return self._scope.trusted

    @property
    def ended(self) -> bool:
        """Whether the scope has ended: it was cancelled, or left, or a commit is unsure."""
        return self._scope.ended

    @property
    def draining(self) -> bool:
        """Whether the keeper drains: finish what you have begun, and leave."""
        return self._scope.draining

    def news(self, timeout: float | None = None) -> bool:
        """As `eskit_lease.Scope.news`. Returns False after `timeout` seconds without news."""
        try:
            return self._thread.run(self._scope._news(timeout))
        except Closed:
            return True

    def cancel(self, why: str) -> None:
        """Ends the scope, whatever the work does."""
        self._scope._why = self._scope._why or why  # at once, for the next guard
        self._thread.call(self._scope.cancel, why)

    def _require(self) -> None:
        self._scope._require()


class _Fenced(Scope[S]):
    def guard(self, tx: Any) -> None:
        """Asserts to the end of the transaction of `tx` that this scope's fence holds. Call it first in each
        transaction that writes, before you read what the writes depend on.

        `tx`: a connection of psycopg or Django, or a session or connection of SQLAlchemy.
        Raises `Lost`, `Refused`, RuntimeError for a connection in autocommit without a transaction, and other errors of
        the driver unchanged.
        """
        self._fetch_sync(tx, *self._check())

    def transaction(self, tx: Any) -> contextlib.AbstractContextManager[Any]:
        """A block that is one transaction on `tx`: begins it, guards it, and commits it at the end of the block.

        Raises, beside the errors of `guard` and of the block: `Lost` and `Refused` for errors within the block that
        mean so, `Unsure` if the connection breaks before COMMIT is answered, and RuntimeError if `tx` is in a
        transaction.
        """
        return self._transaction_sync(tx, self._check())

    def _check(self) -> Call:
        return FENCE_CHECK, self.name, self.fence


class Lead(_Fenced[_lead.Lead]):
    """The leadership of a name."""


class Partition(_Fenced[_group.Partition]):
    """A partition that this process owns.

    Attributes:
        group: the group; `name` is the same.
        partition: the number of the partition, from 0.
    """

    def __init__(self, scope: _group.Partition, thread: _Thread) -> None:
        super().__init__(scope, thread)
        self.group, self.partition = scope.group, scope.partition

    def position(self, tx: Any) -> int:
        """As `eskit_lease.Partition.position`."""
        return int(self._fetch_sync(tx, _group.POSITION, *self._scope._position()))

    def commit(self, tx: Any, position: int, expected: int) -> bool:
        """As `eskit_lease.Partition.commit`."""
        return bool(self._fetch_sync(tx, _group.COMMIT, *self._scope._commit(position, expected)))


class Item(Scope[_work.Item]):
    """An item that this process has claimed. Its attributes are those of `eskit_lease.Item`."""

    def __init__(self, scope: _work.Item, thread: _Thread) -> None:
        super().__init__(scope, thread)
        self.queue, self.id, self.key = scope.queue, scope.id, scope.key
        self.payload, self.attempt = scope.payload, scope.attempt


class Execution(Scope[_once.Execution]):
    """The one run of a key.

    Attributes:
        key: the key; `name` is the same.
    """

    def __init__(self, scope: _once.Execution, thread: _Thread) -> None:
        super().__init__(scope, thread)
        self.key = scope.key


class Leases:
    """The leases of this process: one session, kept alive by a connection and a thread that nothing else uses.

        with Leases(os.environ["DATABASE_URL"]) as leases:
            with leases.lead("sub:orders") as lead:
                ...

    Its arguments are those of `eskit_lease.Leases`. `on_state` is called in the keeper's thread, and so is a function
    that makes the keeper's connections, which are `psycopg.AsyncConnection`s here, too. All threads may use it.
    """

    def __init__(
        self,
        connection: str | Connect = "",
        *,
        name: str | None = None,
        ttl: float = 30.0,
        takeover: bool = False,
        patience: float = 30.0,
        watch: str | None = None,
        on_state: Callable[[str], None] | None = None,
    ) -> None:
        self._keeper = Keeper(settings_of(connection, name, ttl, takeover, patience, watch, on_state))
        self._thread = _Thread()
        self._signals: dict[int, Any] = {}

    @property
    def name(self) -> str:
        """The consumer's name."""
        return self._keeper.settings.name

    @property
    def state(self) -> str:
        """starting, trusted, doubting, lost, draining or closed."""
        return self._keeper.state

    @property
    def session(self) -> str | None:
        """The uuid of the session, for SQL of your own; None if there is none. Keep it private."""
        return self._keeper.session

    def open(self) -> None:
        """Opens the session. `with` does it, too.

        Raises the error of the last try if there is no session within the patience; RuntimeError if called twice.
        """
        self._thread.start()
        try:
            self._thread.run(self._keeper.open())
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Leases:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextlib.contextmanager
    def lead(self, name: str, *, timeout: float | None = None) -> Iterator[Lead]:
        """Waits for leadership of a name, and leads for the length of the block.

        Raises TimeoutError after `timeout` seconds, `Closed` once the keeper drains, and the driver's errors.
        """
        lead = self._acquire(name, True, timeout)
        assert lead is not None
        with self._led(lead):
            yield lead

    @contextlib.contextmanager
    def try_lead(self, name: str) -> Iterator[Lead | None]:
        """As `lead`, but gives None if another process leads now, or there is no trust."""
        lead = self._acquire(name, False, None)
        if lead is None:
            yield None
            return
        with self._led(lead):
            yield lead

    def join(self, group: str, work: Callable[[Partition], object]) -> None:
        """As `eskit_lease.Leases.join`. `work` runs in a thread for each partition. Returns when the keeper has
        drained."""

        async def run(partition: _group.Partition) -> None:
            await _in_thread(work, Partition(partition, self._thread))

        self._thread.run(_group.join(self._keeper, group, run))

    def work(
        self,
        queue: str,
        handler: Callable[[Item, Any], object],
        connections: Callable[[], contextlib.AbstractContextManager[Any]],
        *,
        concurrency: int = 1,
    ) -> None:
        """As `eskit_lease.Leases.work`. Each handler runs in a thread. Returns when the keeper has drained.

        `connections`: gives the application's connections: `pool.connection` of psycopg_pool, a `sessionmaker` of
        SQLAlchemy, or a function that connects.
        """

        def handle(item: Item) -> None:
            with connections() as tx, item._transaction_sync(tx, None, item._scope._done()):
                item._scope._begun = True
                handler(item, tx)

        async def perform(item: _work.Item) -> None:
            await _in_thread(handle, Item(item, self._thread))

        self._thread.run(_work.work(self._keeper, queue, perform, concurrency))

    def once(self, key: str, function: Callable[[Execution], Any], *, retry_in_doubt: bool = False) -> Outcome:
        """As `eskit_lease.Leases.once`. Calls the function in the caller's thread."""

        async def begin() -> Execution | Outcome:
            begun = await _once.begin(self._keeper, key, retry_in_doubt=retry_in_doubt)
            return begun if isinstance(begun, Outcome) else Execution(begun, self._thread)

        async def undo(begun: Execution | Outcome) -> None:
            if isinstance(begun, Execution):
                await _once.fail(begun._scope, RuntimeError(_once.NOT_BEGUN))

        begun = self._thread.run(begin(), undo=undo)
        if isinstance(begun, Outcome):
            return begun
        try:
            result = function(begun)
        except BaseException as error:
            with contextlib.suppress(Closed):
                self._finish(_once.fail, begun._scope, error)
            raise
        return self._finish(_once.finish, begun._scope, result)

    def drain(self, seconds: float = DRAIN) -> None:
        """Begins nothing new, waits until all scopes have ended, at most so many seconds, and closes. Not from within a
        scope."""
        if self._thread.is_running:
            self._thread.run(self._keeper.drain(seconds))
        self.close()

    def drain_on_signals(self, seconds: float = DRAIN, signals: Iterable[int] = SIGNALS) -> None:
        """Has SIGTERM and SIGINT drain. The second one does what it did before. Call it in the main thread."""

        def drain(number: int, frame: FrameType | None) -> None:
            self._forget_signals()
            self._thread.call(lambda: asyncio.ensure_future(self._keeper.drain(seconds)))

        for number in signals:
            self._signals[number] = signal.signal(number, drain)

    def close(self) -> None:
        """Cancels all scopes, waits for their work, and closes the session: within the TTL at most. `with` does it,
        too. Does nothing if it was done."""
        if threading.current_thread() is threading.main_thread():
            self._forget_signals()
        if self._thread.is_running:
            with contextlib.suppress(Closed):  # another thread was faster
                self._thread.run(self._keeper.close())
        self._thread.stop()

    def _acquire(self, name: str, wait: bool, timeout: float | None) -> Lead | None:
        async def acquire() -> Lead | None:
            lead = await _lead.acquire(self._keeper, name, wait=wait)
            return None if lead is None else Lead(lead, self._thread)

        async def undo(lead: Lead | None) -> None:
            if lead is not None:
                await _lead.release(self._keeper, lead._scope)

        return self._thread.run(acquire(), undo=undo, timeout=timeout)

    @contextlib.contextmanager
    def _led(self, lead: Lead) -> Iterator[None]:
        try:
            yield
        finally:
            with contextlib.suppress(Closed):  # the end of the session has released it
                self._finish(_lead.release, self._keeper, lead._scope)

    def _finish(self, work: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Waits for what goes on if the waiting is interrupted."""

        async def finish() -> T:
            return await asyncio.shield(self._keeper.spawn(work(*args)))

        return self._thread.run(finish())

    def _forget_signals(self) -> None:
        while self._signals:
            signal.signal(*self._signals.popitem())


class _Thread:
    """A thread with an event loop, in which other threads have coroutines run."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._waiting: set[concurrent.futures.Future[Any]] = set()

    @property
    def is_running(self) -> bool:
        return self._loop is not None

    def start(self) -> None:
        with self._lock:
            if self._thread is not None:
                raise RuntimeError("the keeper was opened before")
            # On Windows psycopg cannot use the default event loop.
            self._loop = asyncio.SelectorEventLoop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="eskit_lease", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Ends the thread. What other threads still wait for raises `Closed`."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is None or self._thread is None:
            return
        concurrent.futures.wait(tuple(self._waiting), timeout=MOMENT)  # all verbs end with the keeper
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        for future in tuple(self._waiting):
            future.set_exception(Closed(CLOSED))
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=MOMENT))
        loop.close()

    def call(self, function: Callable[..., object], *args: object) -> bool:
        """Has a function called in the thread soon. Returns False if the thread has ended."""
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(function, *args)
            return self._loop is not None

    def run(
        self,
        work: Coroutine[Any, Any, T],
        *,
        undo: Callable[[T], Coroutine[Any, Any, None]] | None = None,
        timeout: float | None = None,
    ) -> T:
        """Runs a coroutine in the thread and returns its result.

        A caller that is interrupted, or waits longer than `timeout` seconds, cancels it. A result that comes all the
        same is handed to `undo`.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("the keeper's own thread must not wait for the keeper")
        call = _Call(work, undo)
        self._waiting.add(call.done)
        try:
            if not self.call(call.start):
                work.close()
                raise Closed(
                    CLOSED if self._thread else "the keeper was not opened: use `with Leases(..)`, or `open()`"
                )
            return call.done.result(timeout)
        except BaseException as error:
            self.call(call.give_up)
            if timeout is not None and isinstance(error, concurrent.futures.TimeoutError):
                raise TimeoutError(f"not within {timeout:g} s") from None
            raise
        finally:
            self._waiting.discard(call.done)


class _Call(Generic[T]):
    """A coroutine in the keeper's thread, and another thread that waits for it. All but `done` is the keeper's."""

    def __init__(self, work: Coroutine[Any, Any, T], undo: Callable[[T], Coroutine[Any, Any, None]] | None) -> None:
        self.done: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._work, self._undo = work, undo
        self._task: asyncio.Task[T] | None = None
        self._given_up = False

    def start(self) -> None:
        self._task = asyncio.ensure_future(self._work)
        self._task.add_done_callback(self._finish)

    def give_up(self) -> None:
        self._given_up = True
        if self.done.done():
            self._take_back()
        elif self._task is not None:
            self._task.cancel()

    def _finish(self, task: asyncio.Task[T]) -> None:
        if self._given_up:
            self._take_back()
        elif task.cancelled():
            self.done.set_exception(Closed(CLOSED))
        elif (error := task.exception()) is not None:
            self.done.set_exception(error)
        else:
            self.done.set_result(task.result())

    def _take_back(self) -> None:
        """Undoes what the waiting thread does not get."""
        task = self._task
        if self._undo is not None and task is not None and not task.cancelled() and task.exception() is None:
            self._undoing = asyncio.ensure_future(self._undo(task.result()))


def _in_thread(function: Callable[[T], object], scope: T) -> Awaitable[object]:
    """Calls a function in a thread of its own. Nothing interrupts it."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def tell(error: BaseException | None) -> None:
        if done.done():  # the keeper is closed
            return
        if error is None:
            done.set_result(None)
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            done.set_exception(error)
        else:  # it would end the keeper's thread
            done.set_exception(RuntimeError(f"the work has raised {error!r}"))

    def run() -> None:
        raised: BaseException | None = None
        try:
            function(scope)
        except BaseException as error:
            raised = error
        with contextlib.suppress(RuntimeError):  # the keeper is closed
            loop.call_soon_threadsafe(tell, raised)

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(run,), name=f"eskit_lease {scope!r}", daemon=True).start()
    return done
