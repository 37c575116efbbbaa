"""The keeper: one session, one connection that keeps it alive, and the news for all that the process was handed out.

The core decides; this does what it says.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any, Protocol

import psycopg

from ._core import Action, Answer, Core
from ._errors import FENCE_REFUSED, SESSION_ENDED, Closed, Lost, describe
from ._line import Broken, Connect, Errands, Line, Row
from ._waiting import Waiting

OPEN = """SELECT session::text, trust_ms, revision
          FROM eskit_lease.session_open(%s::text, %s::interval, takeover => %s::boolean)"""
BEAT = "SELECT alive, trust_ms, revision, reason FROM eskit_lease.session_heartbeat(%s::uuid)"
WATCH = "SELECT alive, trust_ms, revision, reason FROM eskit_lease.session_watch(%s::uuid, %s::regclass)"
WAIT = "SELECT alive, trust_ms, revision, reason FROM eskit_lease.session_wait(%s::uuid, %s::bigint, %s::interval)"
DRAIN = "SELECT eskit_lease.session_drain(%s::uuid) AS done"
CLOSE = "SELECT eskit_lease.session_close(%s::uuid) AS done"

# The server asks to repeat these calls: a lock that is not free, a cancel or a `statement_timeout`, and a snapshot that
# is too old.
REPEATED = ("55P03", "57014", "40001")
NO_OBJECT = "42704"
CANNOT_WATCH = ("42P01", "42501", "42809")
NO_TEXT = "the error's text could not be stored"
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0  # seconds, before a call is repeated
FAREWELL = 0.2  # seconds for the wait to end by itself once the session is closed

log = logging.getLogger("eskit_lease")


class Held(Protocol):
    """What the keeper cancels when the trust is over."""

    def cancel(self, why: str) -> None: ...


@dataclass(frozen=True)
class Settings:
    connect: Connect
    name: str
    ttl: float
    takeover: bool
    patience: float
    watch: str | None
    on_state: Callable[[str], None] | None


def monotonic_ms() -> float:
    return time.monotonic() * 1000


class Keeper(Waiting):
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings, self.ttl, self.name = settings, settings.ttl, settings.name
        self.scopes: set[Held] = set()
        self.used: dict[str, int] = {}  # the fences of run-once keys whose run has begun, until its end is stored
        self._core = Core(round(settings.ttl * 1000), settings.takeover, settings.watch is not None)
        self._errands = Errands(settings.connect, settings.ttl / 2)
        self._line: Line | None = None
        self._calls: set[asyncio.Task[None]] = set()  # on the line
        self._timer: asyncio.TimerHandle | None = None
        self._told = "starting"  # the state that was told last
        self._trouble: BaseException | None = None  # the error of the last try
        self._logged: set[str] = set()  # what went wrong since the last answer, as each is told once
        self._is_opened = False
        self._ending: asyncio.Task[None] | None = None
        self._calls_until = float("inf")  # when calls are no longer repeated, once the keeper closes

    # ---- what the verbs ask ----

    @property
    def state(self) -> str:
        """starting, trusted, doubting, lost, draining or closed."""
        return self._core.state(monotonic_ms())

    @property
    def session(self) -> str | None:
        """The uuid of the session; None if there is none."""
        return self._core.session

    @property
    def draining(self) -> bool:
        """Whether nothing new may begin: from the start of a drain or a close, for good."""
        return self._core.is_draining or self._core.is_closed

    @property
    def closing(self) -> bool:
        """Whether the keeper closes or is closed: the end of its session releases everything."""
        return self._ending is not None or self._core.is_closed

    def is_trusted(self, session: str | None = None) -> bool:
        """Whether the session may be believed to live; if given one, whether it is this one."""
        own = self._core.session
        return own is not None and session in (None, own) and monotonic_ms() < self._core.trusted_until

    def require_open(self) -> None:
        """Raises `Closed` if no verb may begin."""
        if not self._is_opened:
            raise Closed("the keeper was not opened: use `with Leases(..)`, or call `open()`")
        if self.draining:
            raise Closed("the keeper is closed" if self.closing else "the keeper drains")

    async def ready(self) -> str:
        """Waits until the session is trusted, and returns it. Raises `Closed`."""
        await self.until(lambda: self.draining or self.is_trusted())
        self.require_open()
        return str(self._core.session)

    async def turn(self, name: Hashable) -> None:
        """Waits until no task of this process is about a name. Raises `Closed`."""
        self.require_open()
        await self.until(lambda: self.draining or not self.is_taken(name))
        self.require_open()

    def begin(self, scope: Held, session: str) -> bool:
        """Lets a scope begin under this session. Returns False if the trust is over, or nothing may begin."""
        if self.draining or not self.is_trusted(session):
            return False
        self.scopes.add(scope)
        return True

    def end(self, scope: Held) -> None:
        """Says that the work under a scope has ended."""
        self.scopes.discard(scope)
        self.poke()

    def _warn_once(self, text: str) -> None:
        if text not in self._logged:
            self._logged.add(text)
            self.warn("%s", text)

    def warn(self, text: str, *given: object, trace: BaseException | None = None) -> None:
        log.warning(f"%s: {text}", self.name, *given, exc_info=trace)

    # ---- calls on the second connection ----

    async def call(self, session: str, sql: str, *params: Any, repeat: bool = True) -> list[Row]:
        """Runs a statement for a session on the second connection, and returns its rows.

        Repeats it after a lost connection, 55P03, 57014 and 40001, for as long as the session is not known to have
        ended; so it must not matter how often the server runs it. Without `repeat`, raises `Broken` or the driver's
        error. Raises `Lost` once the session has ended, and `Closed` half of the TTL after a close began.
        """
        pause = FIRST_PAUSE
        while True:
            try:
                sent, rows = await self._errands.call(sql, params, lambda: self._require(session))
            except Broken:
                if not repeat:
                    raise
            except psycopg.Error as error:
                self._hear_error(session, error)
                if not repeat or error.sqlstate not in REPEATED:
                    raise
            else:
                self._hear_answer(session, sent, rows)
                return rows
            await self.until(lambda: self._core.session != session, pause)
            pause = min(2 * pause, LONGEST_PAUSE, self.ttl / 6)

    async def fail(self, session: str, sql: str, name: Hashable, fence: int, error: BaseException, *more: Any) -> bool:
        """Runs a statement that stores the text of an error, and says whether it has. If the server refuses the text,
        stores that there was one."""
        for text in (describe(error), NO_TEXT):
            try:
                await self.call(session, self._limited(sql), name, fence, text, *more)
                return True
            except (Lost, Closed):
                return True  # the session's end does it
            except psycopg.Error as refused:
                if refused.sqlstate == FENCE_REFUSED:  # another call did it
                    return True
                self.warn("%s: cannot store an error: %s", name, refused)
        return False

    async def give_back(self, session: str, sql: str, *params: Any) -> bool:
        """Runs a statement that gives something back, and says whether it has. Nothing is left to give back once the
        session has ended, or is about to."""
        try:
            rows = [] if self.closing else await self.call(session, self._limited(sql), *params)
            return not rows or bool(rows[0]["done"])
        except (Lost, Closed):
            return True
        except psycopg.Error as error:
            if error.sqlstate not in (FENCE_REFUSED, NO_OBJECT):  # else there is nothing to give back any more
                self.warn("cannot give back %s: %s", params[0], error)
            return False

    async def give_up_session(self, session: str) -> None:
        """Ends the session, where nothing else makes sure of what it holds. Another one opens."""
        self._core.give_up()
        self._cancel("the keeper opens another session")
        with contextlib.suppress(Lost, Closed):
            await self.call(session, self._limited(CLOSE), session)
            self._hear(session, time.monotonic(), Answer(alive=False))

    def _limited(self, sql: str) -> str:
        """Returns a statement, which must have no FROM, with a limit to its wait for transactions under a fence. When a
        call is given up, the server does not notice, and would go on waiting."""
        return f"{sql} FROM set_config('lock_timeout', '{self._core.ttl_ms // 4} ms', true)"

    def _require(self, session: str) -> None:
        if self._core.session != session:
            raise Lost("the session has ended")
        if time.monotonic() > self._calls_until:
            raise Closed("the keeper is closed")

    def _hear_error(self, session: str, error: psycopg.Error) -> None:
        """Raises `Lost` if the error says that the session has ended. 55000 may mean other things here."""
        if error.sqlstate == SESSION_ENDED:
            self._hear(session, time.monotonic(), Answer(alive=False))
        if self._core.session != session:
            raise Lost("the session has ended", sqlstate=error.sqlstate) from error

    def _hear_answer(self, session: str, sent: float, rows: list[Row]) -> None:
        """Takes the heartbeat that is in an answer of `lease_acquire`."""
        answer = rows[0] if rows else {}
        if answer.get("reason") in ("expired", "unknown_session"):
            self._hear(session, sent, Answer(alive=False))
        elif answer.get("trust_ms") is not None:
            self._hear(session, sent, Answer(trust_ms=answer["trust_ms"]))

    def _hear(self, session: str, sent: float, answer: Answer) -> None:
        if self._core.session == session:
            self._perform(self._core.heard(monotonic_ms(), sent * 1000, answer))

    # ---- the keeper's own connection ----

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            if action.kind == "connect":
                former, self._line = self._line, Line(self.settings.connect)
                self._start(self._connect(self._line, former))
            elif action.kind == "disconnect":
                if self._line is not None:
                    self._line.drop()
            elif action.kind == "cancel":
                self._cancel("the trust in the session is over" if self._core.session else "the session has ended")
            elif action.kind == "ask":
                self.ask()
            elif action.kind == "warn":
                taken = "another process has ended the session: is its name unique?"
                self._warn_once(taken if action.why == "taken" else f"the server refuses: {self._trouble}")
            elif self._line is not None:
                self._start(self._call(self._line, action.kind, *self._statement(action)))
        self._set_timer()
        self._tell_state()

    def _statement(self, action: Action) -> tuple[str, tuple[Any, ...]]:
        settings, session = self.settings, self._core.session
        if action.kind == "open":
            return OPEN, (self.name, f"{self._core.ttl_ms} ms", action.takeover)
        if action.kind == "wait":
            return WAIT, (session, action.revision, f"{action.timeout_ms} ms")
        return (BEAT, (session,)) if settings.watch is None else (WATCH, (session, settings.watch))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _connect(self, line: Line, former: Line | None) -> None:
        if former is not None:
            await former.close()  # first, as its file descriptor may be that of the next connection
        try:
            await line.open(self.ttl / 2)
        except Broken as error:
            self._lose(line, error)
        else:
            self._happen(line, self._core.connected)

    async def _call(self, line: Line, kind: str, sql: str, params: tuple[Any, ...]) -> None:
        try:
            try:
                rows = await line.call(sql, params)
            except psycopg.Error as error:
                if sql != WATCH or error.sqlstate not in CANNOT_WATCH:
                    raise
                # A table that was dropped must not end the session.
                self._warn_once(f"cannot watch {self.settings.watch}: {error}")
                rows = await line.call(BEAT, params[:1])
        except Broken as error:
            self._lose(line, error)
        except psycopg.Error as error:
            self._trouble = error
            self._happen(line, self._core.failed, error.sqlstate)
        else:
            self._logged.clear()
            if kind == "open":
                log.info("%s: opened a session", self.name)
            self._happen(line, self._core.answered, answer_of(rows[0]))

    def _lose(self, line: Line, error: Broken) -> None:
        if line is self._line:
            self._trouble = error.__cause__ or TimeoutError(str(error))
            self._warn_once(f"there is no connection: {error}")
        self._happen(line, self._core.disconnected)

    def _happen(self, line: Line, event: Callable[..., list[Action]], *given: Any) -> None:
        """Tells the core of an event, unless it is of a connection that was given up."""
        if line is self._line and not self._core.is_closed:
            self._perform(event(monotonic_ms(), *given))

    def _cancel(self, why: str) -> None:
        for scope in tuple(self.scopes):
            scope.cancel(why)
        self.poke()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        deadline = self._core.deadline()
        if deadline is not None:
            pause = max(0.0, deadline / 1000 - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(pause, self._tick)

    def _tick(self) -> None:
        self._perform(self._core.tick(monotonic_ms()))

    def _tell_state(self) -> None:
        state = self.state
        if state == self._told:
            return
        former, self._told = self._told, state
        level = logging.WARNING if state in ("doubting", "lost") else logging.INFO
        log.log(level, "%s: is %s, was %s", self.name, state, former)
        self.poke()
        if self.settings.on_state is not None:
            try:
                self.settings.on_state(state)
            except Exception:
                log.exception("%s: on_state failed", self.name)

    # ---- open, drain and close ----

    async def open(self) -> None:
        """Opens the first session. Raises the error of the last try if none is trusted within the patience."""
        if self._is_opened:
            raise RuntimeError("the keeper was opened before")
        self._is_opened = True
        try:
            self._perform(self._core.start(monotonic_ms()))
            await self.until(lambda: self.draining or self.is_trusted(), self.settings.patience)
            self.require_open()
            if not self.is_trusted():
                raise self._trouble or TimeoutError(f"no session within {self.settings.patience:g} s")
            if self.settings.watch is not None:  # raises what the heartbeats only warn of
                session = await self.ready()
                await self.call(session, WATCH, session, self.settings.watch)
        except BaseException:
            await self.close()
            raise

    async def drain(self, seconds: float) -> None:
        """Begins nothing new, and closes when all has ended, or after this time."""
        if self._is_opened and not self.draining:
            session = self._core.session
            self._perform(self._core.drain(monotonic_ms()))
            if session is not None:
                self.spawn(self.call(session, DRAIN, session))
            self.ask()
        await self.until(lambda: self.closing or not (self.scopes or self._tasks), seconds)
        await self.close()

    async def close(self) -> None:
        """Cancels all scopes, waits for their work, and closes the session; within the TTL at most."""
        if self._is_opened:
            if self._ending is None:
                self._ending = asyncio.ensure_future(self._close())
            await asyncio.shield(self._ending)

    async def _close(self) -> None:
        session, began = self._core.session, time.monotonic()
        self._calls_until = began + self.ttl / 2
        self._perform(self._core.drain(monotonic_ms()))
        self._cancel("the keeper is closed")
        self.ask()
        await self.until(lambda: not (self.scopes or self._tasks), self.ttl / 2)
        if session is not None and self._core.session == session:
            self._calls_until = began + self.ttl
            closing = asyncio.ensure_future(self._close_session(session))
            await asyncio.wait({closing}, timeout=self._calls_until - time.monotonic())
            closing.cancel()
        if not self._core.is_closed:
            self._perform(self._core.close(monotonic_ms()))
        line, self._line = self._line, None
        await self._errands.close()
        if line is not None:
            await line.close()

    async def _close_session(self, session: str) -> None:
        try:
            await self.call(session, self._limited(CLOSE), session)
            # The wait answers that the session has ended, and its connection can be closed with a farewell.
            await self.until(lambda: self._core.is_closed, FAREWELL)
        except (Lost, Closed):
            pass
        except psycopg.Error as error:
            self.warn("cannot close the session, which ends with its TTL: %s", error)


def answer_of(row: Row) -> Answer:
    """Returns the answer of session_open, a heartbeat or a wait. `trust_ms` and `revision` are NULL in some of them."""
    return Answer(
        alive=row.get("alive", True),
        trust_ms=row["trust_ms"] or 0,
        revision=row["revision"] or 0,
        reason=row.get("reason", ""),
        session=row.get("session"),
    )
