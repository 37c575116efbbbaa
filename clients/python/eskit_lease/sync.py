"""The same verbs for programs without asyncio. The keeper runs in a thread of its own.

A thread cannot be interrupted. So a scope that is cancelled sets its event `cancelled`, and raises `Lost` at the next
guard: check it in long work.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import math
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from typing import Any, Generic, TypeVar

from . import _group, _lead, _once, _scope, _work
from ._drivers import SyncDriver
from ._errors import Closed, LeaseError, Lost, Refused, Unsure
from ._leases import DRAIN, SIGNALS, Face
from ._once import Outcome

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
MOMENT = 1.0  # seconds

T = TypeVar("T")
S = TypeVar("S", bound=_scope.Scope)
F = TypeVar("F", bound=_scope.Fenced)


class Scope(Generic[S]):
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
        scope._interrupt = self.cancelled.set
        if scope.cancelled.is_set():
            self.cancelled.set()

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
            return self._thread.run(self._scope.news(math.inf if timeout is None else timeout))
        except Closed:
            return True

    def cancel(self, why: str) -> None:
        """Ends the scope, whatever the work does."""
        self._scope.cancel(why)

    def unsure(self) -> None:
        """As `eskit_lease.Scope.unsure`."""
        self._scope.unsure()


class _Fenced(Scope[F]):
    def guard(self, tx: Any) -> None:
        """Asserts to the end of the transaction of `tx` that this scope's fence holds. Call it first in each
        transaction that writes, before you read what the writes depend on.

        `tx`: a connection of psycopg or Django, or a session or connection of SQLAlchemy.
        Raises `Lost`, `Refused`, RuntimeError for a connection in autocommit without a transaction, and other errors of
        the driver unchanged.
        """
        _now(self._scope.guard(tx))

    def transaction(self, tx: Any) -> contextlib.AbstractContextManager[Any]:
        """A block that is one transaction on `tx`: begins it, guards it, and commits it at the end of the block.

        Raises, beside the errors of `guard` and of the block: `Lost` and `Refused` for errors within the block that
        mean so, `Unsure` if the connection breaks before COMMIT is answered, and RuntimeError if `tx` is in a
        transaction.
        """
        return _entered_now(self._scope.transaction(tx))


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
        return _now(self._scope.position(tx))

    def commit(self, tx: Any, position: int, expected: int) -> bool:
        """As `eskit_lease.Partition.commit`."""
        return _now(self._scope.commit(tx, position, expected))


class Item(Scope[_work.Item]):
    """An item that this process has claimed. Its attributes are those of `eskit_lease.Item`."""

    def __init__(self, scope: _work.Item, thread: _Thread) -> None:
        super().__init__(scope, thread)
        self.queue, self.id, self.key = scope.queue, scope.id, scope.key
        self.attempt = scope.attempt

    @property
    def payload(self) -> Any:
        """As `eskit_lease.Item.payload`."""
        return self._scope.payload


class Execution(Scope[_once.Execution]):
    """The one run of a key.

    Attributes:
        key: the key; `name` is the same.
    """

    def __init__(self, scope: _once.Execution, thread: _Thread) -> None:
        super().__init__(scope, thread)
        self.key = scope.key


class Leases(Face):
    """The leases of this process: one session, kept alive by a connection and a thread that nothing else uses.

        with Leases(os.environ["DATABASE_URL"]) as leases:
            with leases.lead("sub:orders") as lead:
                ...

    Its arguments are those of `eskit_lease.Leases`. `on_state` is called in the keeper's thread, and so is a function
    that makes the keeper's connections, which are `psycopg.AsyncConnection`s here, too. All threads may use it.
    """

    _driver = SyncDriver()
    _thread: _Thread | None = None

    def open(self) -> None:
        """Opens the session. `with` does it, too.

        Raises the error of the last try if there is no session within the patience; RuntimeError if called twice.
        """
        if self._thread is not None:
            raise RuntimeError("the keeper was opened before")
        self._thread = _Thread()
        self._keeper.in_loop = self._thread.call
        try:
            self._thread.run(self._keeper.open())
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Leases:
        self.open()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @contextlib.contextmanager
    def lead(self, name: str, *, timeout: float | None = None) -> Iterator[Lead]:
        """Waits for leadership of a name, and leads for the length of the block.

        Raises TimeoutError after `timeout` seconds, `Closed` once the keeper drains, and the driver's errors.
        """
        thread = self._running()
        with thread.entered(_lead.Leading(self._keeper, name).held(), timeout) as lead:
            assert lead is not None
            yield Lead(lead, thread)

    @contextlib.contextmanager
    def try_lead(self, name: str) -> Iterator[Lead | None]:
        """As `lead`, but gives None if another process, or another block of this one, leads now, or there is no
        trust."""
        thread, leading = self._running(), _lead.Leading(self._keeper, name, waits=False)
        with thread.entered(leading.held()) if leading.may_lead() else contextlib.nullcontext() as lead:
            yield None if lead is None else Lead(lead, thread)

    def join(self, group: str, work: Callable[[Partition], object]) -> None:
        """As `eskit_lease.Leases.join`. `work` runs in a thread for each partition. Returns when the keeper has
        drained."""
        thread = self._running()

        async def run(partition: _group.Partition) -> None:
            await _in_thread(work, Partition(partition, thread))

        thread.run(_group.Member(self._keeper, group, run).serve())

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
        thread = self._running()

        def handle(item: Item) -> None:
            with connections() as tx, _entered_now(item._scope._handled(tx)):
                handler(item, tx)

        async def perform(item: _work.Item) -> None:
            await _in_thread(handle, Item(item, thread))

        thread.run(_work.Worker(self._keeper, queue, perform, concurrency).serve())

    def once(self, key: str, function: Callable[[Execution], Any], *, retry_in_doubt: bool = False) -> Outcome:
        """As `eskit_lease.Leases.once`. Calls the function in the caller's thread."""
        thread, run = self._running(), _once.Run(self._keeper, key, retry_in_doubt)
        with thread.entered(run.held()) as given:
            if isinstance(given, Outcome):
                return given
            run.result = function(Execution(given, thread))
        if not run.is_kept:
            raise Closed(CLOSED)
        return Outcome(True, "done", run.result)

    def drain(self, seconds: float = DRAIN) -> None:
        """Begins nothing new, waits until all scopes have ended, at most so many seconds, and closes. Not from within a
        scope."""
        if self._thread is not None:
            with contextlib.suppress(Closed):
                self._thread.run(self._keeper.drain(seconds))
        self.close()

    def drain_on_signals(self, seconds: float = DRAIN, signals: Iterable[int] = SIGNALS) -> None:
        """Has SIGTERM and SIGINT drain. The second one does what it did before. Call it in the main thread."""
        thread = self._running()

        def drain(*_: object) -> None:
            self._forget_signals()
            thread.call(lambda: self._keeper.spawn(self._keeper.drain(seconds)))

        for number in signals:
            self._signals[number] = signal.signal(number, drain)

    def close(self) -> None:
        """Cancels all scopes, waits for their work, and closes the session: within the TTL at most. `with` does it,
        too. Does nothing if it was done."""
        if threading.current_thread() is threading.main_thread():
            self._forget_signals()
        if self._thread is not None:
            with contextlib.suppress(Closed):
                self._thread.run(self._keeper.drain(0))
            self._thread.stop()

    def _running(self) -> _Thread:
        self._keeper.require_open()
        assert self._thread is not None
        return self._thread

    def _forget_signals(self) -> None:
        while self._signals:
            signal.signal(*self._signals.popitem())


class _Thread:
    """A thread with an event loop, in which other threads have things done."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = asyncio.SelectorEventLoop()  # psycopg needs this one on Windows
        self._lock = threading.RLock()  # a signal may come while this thread has it
        self._waiting: set[concurrent.futures.Future[Any]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="eskit_lease", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread. What is still waited for raises `Closed`."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is None:
            return
        concurrent.futures.wait(tuple(self._waiting), timeout=MOMENT)  # all verbs have ended with the keeper
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=MOMENT))
        loop.close()

    def call(self, function: Callable[..., object], *args: object) -> None:
        """Has a function called in the thread soon, if the thread still runs."""
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(function, *args)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine, and cancels it if the caller is interrupted.

        The main thread waits for a moment at a time: Python handles a signal that comes just as a wait begins only when
        this wait has ended.
        """
        with self._lock:
            if self._loop is None or threading.current_thread() is self._thread:
                work.close()
                if self._loop is None:
                    raise Closed(CLOSED)
                raise RuntimeError("the keeper's own thread must not wait for the keeper")
            running = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._waiting.add(running)
        longest = MOMENT if threading.current_thread() is threading.main_thread() else None
        try:
            while not running.done():
                concurrent.futures.wait({running}, longest)
            return running.result()
        except concurrent.futures.CancelledError:
            raise Closed(CLOSED) from None
        except BaseException:
            running.cancel()
            raise
        finally:
            self._waiting.discard(running)

    @contextlib.contextmanager
    def entered(self, block: contextlib.AbstractAsyncContextManager[T], timeout: float | None = None) -> Iterator[T]:
        """A block of the keeper's. Raises TimeoutError if it is not entered within `timeout` seconds."""

        async def enter() -> T:
            return await asyncio.wait_for(block.__aenter__(), timeout)

        try:
            value = self.run(enter())
        except asyncio.TimeoutError:
            raise TimeoutError(f"not within {timeout} s") from None
        with contextlib.suppress(Closed), _rest(block, value, self.run):
            yield value


def _now(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that waits for nothing, as all that it does is without asyncio."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise RuntimeError("it waits")


@contextlib.contextmanager
def _entered_now(block: contextlib.AbstractAsyncContextManager[T]) -> Iterator[T]:
    """A block that waits for nothing."""
    with _rest(block, _now(block.__aenter__()), _now) as value:
        yield value


@contextlib.contextmanager
def _rest(
    block: contextlib.AbstractAsyncContextManager[T],
    value: T,
    run: Callable[[Coroutine[Any, Any, bool | None]], object],
) -> Iterator[T]:
    """The rest of a block that was entered."""
    try:
        yield value
    except BaseException as error:
        told = error if _is_harmless(error) else asyncio.CancelledError()
        run(block.__aexit__(type(told), told, told.__traceback__))
        raise
    run(block.__aexit__(None, None, None))


def _in_thread(function: Callable[[T], object], scope: T) -> Awaitable[object]:
    """Calls a function in a thread of its own. Nothing interrupts it."""
    done: concurrent.futures.Future[object] = concurrent.futures.Future()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            done.set_result(function(scope))
        except BaseException as error:
            done.set_exception(error if _is_harmless(error) else RuntimeError(f"the work has raised {error!r}"))

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(run,), name=f"eskit_lease {scope!r}", daemon=True).start()
    return asyncio.wrap_future(done)


def _is_harmless(error: BaseException) -> bool:
    """Whether an error may be raised in the event loop. Another one would end it."""
    return isinstance(error, Exception) and not isinstance(error, StopIteration)
