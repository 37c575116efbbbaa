"""Parts that need no server: notations and errors, the line, and the cancels of a scope."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from eskit_lease import Closed, LeaseError, Leases, Lost, Refused, Unsure
from eskit_lease._drivers import Statement, fetch, fetch_sync, sqlstate_of
from eskit_lease._errors import is_answer, meaning
from eskit_lease._line import Broken, Line
from eskit_lease._scope import Scope, interrupted_by
from eskit_lease.sync import Leases as SyncLeases
from eskit_lease.sync import _Thread


def test_a_statement_has_the_notations_of_all_drivers() -> None:
    statement = Statement("SELECT f(CAST(%s AS text), %s)")
    assert statement.percent == "SELECT f(CAST(%s AS text), %s)"
    assert statement.dollar == "SELECT f(CAST($1 AS text), $2)"
    assert statement.colon == "SELECT f(CAST(:p1 AS text), :p2)"


class ServerError(Exception):
    def __init__(self, sqlstate: str | None, severity: str = "ERROR") -> None:
        super().__init__("told")
        self.sqlstate, self.diag = sqlstate, SimpleNamespace(severity_nonlocalized=severity)


class Wrapper(Exception):
    def __init__(self, orig: Exception) -> None:
        super().__init__("wrapped")
        self.orig = orig


def test_the_sqlstate_of_a_wrapped_error() -> None:
    assert sqlstate_of(ServerError("LF001")) == "LF001"
    assert sqlstate_of(Wrapper(ServerError("LF001"))) == "LF001"
    assert sqlstate_of(ServerError(None)) is None
    assert sqlstate_of(ValueError()) is None
    own = ValueError()
    own.__cause__ = ServerError("LF001")  # an error of the application's own is its own
    assert sqlstate_of(own) is None


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (ServerError("23505"), True),
        (ServerError("40001"), True),
        (ServerError("25P03", "FATAL"), False),
        (ServerError("57P01", "FATAL"), False),
        (ServerError("08P01"), False),
        (Wrapper(ServerError("XX000", "PANIC")), False),
        (psycopg.OperationalError("server closed the connection unexpectedly"), False),
        (ConnectionResetError(), False),
        (asyncio.CancelledError(), False),
    ],
)
def test_an_answer_to_commit(error: BaseException, answer: bool) -> None:
    assert is_answer(error) == answer


@pytest.mark.parametrize(
    ("sqlstate", "ours", "kind"),
    [
        ("LF003", False, Lost),
        ("55000", True, Lost),
        ("55000", False, ServerError),
        ("LF001", False, Refused),
        ("55P03", True, Refused),
        ("40001", False, Refused),
        ("40P01", True, ServerError),
        (None, True, ServerError),
    ],
)
def test_the_meaning_of_an_error(sqlstate: str | None, ours: bool, kind: type[Exception]) -> None:
    error = ServerError(sqlstate)
    told = meaning(error, "sub:orders", 7, ours=ours)
    assert type(told) is kind
    if isinstance(told, LeaseError):
        assert (told.resource, told.fence, told.sqlstate, told.__cause__) == ("sub:orders", 7, sqlstate, error)
    else:
        assert told is error
    unsure = Unsure("unsure")
    assert meaning(unsure, "sub:orders", 7, ours=ours) is unsure


async def test_what_is_no_connection() -> None:
    with pytest.raises(TypeError):
        await fetch(object(), Statement("SELECT 1"))
    with pytest.raises(TypeError):
        fetch_sync(object(), Statement("SELECT 1"))


def test_settings() -> None:
    with pytest.raises(ValueError, match="name"):
        Leases(takeover=True)
    with pytest.raises(ValueError, match="ttl"):
        Leases(ttl=0)
    with pytest.raises(psycopg.ProgrammingError):
        Leases("no connection string")
    assert Leases().name != Leases().name


async def test_a_keeper_that_is_not_open() -> None:
    leases = Leases()
    with pytest.raises(Closed):
        async with leases.lead("x"):
            pass
    with pytest.raises(Closed):
        await leases.once("x", lambda _: asyncio.sleep(0))
    await leases.close()
    with pytest.raises(Closed), SyncLeases().lead("x"):
        pass


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
def test_a_signal_is_handled_although_the_thread_waits() -> None:
    """Also one that comes just as the wait begins: about one in 100 here."""
    thread, told = _Thread(), asyncio.Event()

    async def wait() -> None:
        await told.wait()
        told.clear()

    former = signal.signal(signal.SIGALRM, lambda *_: thread.call(told.set))
    try:
        for number in range(300):
            signal.setitimer(signal.ITIMER_REAL, (number % 100 + 1) / 1e6)
            thread.run(wait())
    finally:
        signal.signal(signal.SIGALRM, former)
        thread.stop()


# ---- a line to a server that does not answer ----


async def silent() -> tuple[asyncio.Server, str]:
    async def serve(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    return server, f"host=127.0.0.1 port={server.sockets[0].getsockname()[1]} sslmode=disable"


async def test_a_connection_that_is_not_made_is_given_up() -> None:
    server, dsn = await silent()
    began = time.monotonic()
    with pytest.raises(Broken, match=r"within 0\.2 s"):
        await Line(lambda: psycopg.AsyncConnection.connect(dsn)).connect(0.2)
    assert time.monotonic() - began < 3
    server.close()


async def test_a_close_ends_a_connection_that_is_being_made() -> None:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()  # to the end
        ended.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    leases = Leases(f"host=127.0.0.1 port={server.sockets[0].getsockname()[1]} sslmode=disable", ttl=60)
    opening = asyncio.ensure_future(leases.open())
    await asyncio.sleep(0.2)
    await leases.close()
    await asyncio.wait_for(ended.wait(), 5)
    with pytest.raises(Closed):
        await opening
    server.close()


async def test_opening_has_patience_and_raises_the_last_error() -> None:
    refusing = "host=127.0.0.1 port=1 connect_timeout=2"
    began = time.monotonic()
    with pytest.raises(psycopg.OperationalError):
        await Leases(refusing, patience=0.3).open()
    assert 0.3 <= time.monotonic() - began < 5
    server, dsn = await silent()
    with pytest.raises(TimeoutError):
        await Leases(dsn, ttl=0.4, patience=0.5).open()
    server.close()


async def test_a_function_that_makes_no_connection() -> None:
    async def connect() -> Any:
        return object()

    with pytest.raises(TypeError, match="psycopg"):
        await Leases(connect, patience=0.1).open()


# ---- the cancels of a scope ----


class FakeKeeper:
    asks = 0
    draining = False
    trusted = True
    cancels: set[Any] = set()  # noqa: RUF012

    def __init__(self) -> None:
        self.driver = self  # of the application's connections

    async def fetch(self, *_: object) -> None:
        """Answers a check after the trust has run out."""
        self.trusted = False

    def poke(self) -> None:
        pass

    def in_loop(self, function: Callable[[], None]) -> None:
        function()

    def is_trusted(self, session: str) -> bool:
        return self.trusted


def scope() -> Scope:
    return Scope(FakeKeeper(), "x", 1, "s")  # type: ignore[arg-type]


def later(call: Any, *args: Any) -> None:
    asyncio.get_running_loop().call_later(0.05, call, *args)


async def test_a_cancelled_scope_interrupts_its_task() -> None:
    one = scope()
    later(one.cancel, "told")
    with pytest.raises(Lost, match="told"), interrupted_by(one):
        await asyncio.sleep(5)
    await asyncio.sleep(0.01)  # nothing of the cancel is left
    assert one.ended
    assert one.cancelled.is_set()
    if sys.version_info >= (3, 11):
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0


async def test_a_scope_that_was_cancelled_before_its_block() -> None:
    one = scope()
    one.cancel("told")
    with pytest.raises(Lost), interrupted_by(one):
        await asyncio.sleep(5)


async def test_a_check_that_is_answered_after_the_trust() -> None:
    one = scope()
    with pytest.raises(Lost):
        await one._fetch(object(), Statement("SELECT 1"))


async def test_a_replaced_session_is_forgotten_before_it_is_closed() -> None:
    """What it had may be granted to another as soon as it is closed."""
    keeper = Leases()._keeper
    told = []

    async def call(sql: str, params: tuple[Any, ...]) -> None:
        told.append(f"closes {params[0]}, has {keeper.core.session}")

    keeper._errands.call = call  # type: ignore[method-assign, assignment]
    keeper.cancels.add(lambda why: told.append(f"cancels: {why}"))
    keeper.core.tick(0)
    keeper.core.connected()
    keeper.core.tick(0)
    keeper.core.answered(0, {"session": "s", "trust_ms": 1e12, "revision": 1})
    keeper.replace("s", "a claim had no answer")
    await asyncio.sleep(0)
    assert told == ["cancels: the trust in the session is over", "closes s, has None"]


async def test_a_cancel_by_another_is_no_loss() -> None:
    one = scope()

    async def block() -> None:
        with interrupted_by(one):
            await asyncio.sleep(5)

    task = asyncio.ensure_future(block())
    later(task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not one.ended


@pytest.mark.skipif(sys.version_info < (3, 11), reason="a task does not count its cancels")
async def test_both_cancels_at_once_are_the_others() -> None:
    one = scope()

    async def block() -> None:
        with interrupted_by(one):
            await asyncio.sleep(5)

    task = asyncio.ensure_future(block())
    await asyncio.sleep(0.01)
    task.cancel()
    one.cancel("told")
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_time_limit_within_and_around_a_scope() -> None:
    one = scope()
    with pytest.raises(asyncio.TimeoutError), interrupted_by(one):
        await asyncio.wait_for(asyncio.sleep(5), 0.05)
    later(one.cancel, "told")
    with pytest.raises(Lost), interrupted_by(one):
        await asyncio.wait_for(asyncio.sleep(5), 3)


async def test_a_block_that_swallows_its_cancel_ends_as_it_likes() -> None:
    one = scope()
    later(one.cancel, "told")
    with interrupted_by(one), contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(5)
    await asyncio.sleep(0.01)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="wait_for swallows no cancel")
async def test_a_swallowed_cancel_comes_again() -> None:
    one = scope()
    later(one.cancel, "told")
    with pytest.raises(Lost), interrupted_by(one):
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            await asyncio.sleep(5)


async def test_the_work_that_says_unsure_is_not_interrupted_by_itself() -> None:
    one = scope()
    with interrupted_by(one):
        one.unsure()
        await asyncio.sleep(0.01)
    assert one.ended
    with pytest.raises(Lost):
        one._require()
