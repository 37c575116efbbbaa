"""The keeper: one session, one connection that keeps it alive, and the news for all that the process was handed out.

The core decides; this does what it says.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import psycopg

from ._core import Action, Answer, Core
from ._drivers import Driver, sqlstate_of
from ._errors import FENCE_REFUSED, SESSION_ENDED, Closed, Lost, describe
from ._line import Broken, Connect, Errands, Line, Row
from ._waiting import Waiting

OPEN = """SELECT session::text, trust_ms, revision
          FROM eskit_lease.session_open(%s::text, %s::interval, takeover => %s::boolean)"""
ANSWER = "SELECT alive, coalesce(trust_ms, 0) AS trust_ms, coalesce(revision, 0) AS revision, reason FROM eskit_lease"
BEAT = f"{ANSWER}.session_heartbeat(%s::uuid)"
WATCH = f"{ANSWER}.session_watch(%s::uuid, %s::regclass)"
WAIT = f"{ANSWER}.session_wait(%s::uuid, %s::bigint, %s::interval)"
DRAIN = "SELECT eskit_lease.session_drain(%s::uuid)"
CLOSE = "SELECT eskit_lease.session_close(%s::uuid)"

# The server asks to repeat these calls: a lock that is not free, a cancel or a `statement_timeout`, and a snapshot that
# is too old.
REPEATED = ("55P03", "57014", "40001")
NO_OBJECT = "42704"
CANNOT_WATCH = ("42P01", "42501", "42809")
NO_TEXT = "the error's text could not be stored"
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0  # seconds, before a call is repeated
FAREWELL = 0.2  # seconds for the wait to end by itself once the session is closed

log = logging.getLogger("eskit_lease")


def monotonic_ms() -> float:
    return time.monotonic() * 1000


@dataclass(eq=False)
class Keeper(Waiting):
    make: Connect  # makes its connections
    name: str
    ttl: float
    takeover: bool
    patience: float
    watch: str | None
    on_state: Callable[[str], None] | None
    driver: Driver  # of the application's connections

    def __post_init__(self) -> None:
        super().__init__()
        self.in_loop: Callable[[Callable[[], None]], object] = lambda function: function()  # has it called there
        self.cancels: set[Callable[[str], None]] = set()  # of all scopes, for when the trust is over
        self.used: dict[Hashable, int] = {}  # the fences under which a scope has begun, until they are given back
        self._core = Core(round(self.ttl * 1000), self.takeover, self.watch is not None)
        self._errands = Errands(self.make)
        self._line = Line(self.make)
        self._doing: asyncio.Task[None] | None = None  # what the line does; None if that was given up
        self._timer: asyncio.TimerHandle | None = None
        self._told = "starting"  # the state that was told last
        self._trouble: BaseException | None = None  # the error of the last try
        self._logged: set[str] = set()  # what went wrong since the last answer, as each is told once
        self._replaced: str | None = None  # the session that the keeper is closing, to have another
        self._is_opened = False
        self._is_hurried = False  # a drain waits no longer
        self._ending: asyncio.Task[None] | None = None
        self._calls_until = math.inf  # when calls are given up, once the keeper closes

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
        """Whether all is cancelled: the end of the session gives back what is left."""
        return self._calls_until < math.inf

    def is_trusted(self, session: str | None = None) -> bool:
        """Whether the session may be believed to live; if given one, whether it is this one."""
        own = self._core.session
        return own is not None and session in (None, own) and monotonic_ms() < self._core.trusted_until

    def may_begin(self, session: str) -> bool:
        """Whether a scope may begin under this session."""
        return self.is_trusted(session) and not self.draining

    def require_open(self) -> None:
        """Raises `Closed` if no verb may begin."""
        if not self._is_opened:
            raise Closed("the keeper was not opened: use `with Leases(..)`, or call `open()`")
        if self.draining:
            raise Closed("the keeper drains or is closed")

    def warn(self, text: str, trace: BaseException | None = None) -> None:
        log.warning("%s: %s", self.name, text, exc_info=trace)

    def _warn_once(self, text: str) -> None:
        if text not in self._logged:
            self._logged.add(text)
            self.warn(text)

    # ---- calls on the second connection ----

    async def call(self, session: str, sql: str, *params: Any, repeat: bool = True) -> list[Row]:
        """Runs a statement for a session on the second connection, and returns its rows.

        Repeats it after a lost connection, 55P03, 57014 and 40001, for as long as the session is not known to have
        ended; so it must not matter how often the server runs it. Without `repeat`, raises `Broken` or the driver's
        error. Raises `Lost` once the session has ended, and `Closed` half of the TTL after a close began.
        """
        pause = FIRST_PAUSE
        while True:
            sent = monotonic_ms()
            try:
                rows = await self._errands.call(sql, params, lambda: self._allow(session))
                answer = rows[0] if rows else {}
                if answer.get("trust_ms") is not None:
                    self._hear(session, sent, Answer(trust_ms=answer["trust_ms"]))
                if answer.get("reason") not in ("expired", "unknown_session"):
                    return rows
                self._hear(session, sent, Answer(alive=False))
                raise Lost("the session has ended")
            except (psycopg.Error, Broken) as error:
                state = sqlstate_of(error)
                if state == SESSION_ENDED:  # 55000 may mean other things here
                    self._hear(session, sent, Answer(alive=False))
                    raise Lost("the session has ended", sqlstate=state) from error
                if not repeat or not (isinstance(error, Broken) or state in REPEATED):
                    raise
            await self.until(lambda: session not in (self._core.session, self._replaced), pause)
            pause = min(2 * pause, LONGEST_PAUSE, self.ttl / 6)

    async def give_back(self, session: str, sql: str, *params: Any) -> bool:
        """Runs a statement that gives something back, and says whether nothing is left: also if the session has ended,
        or is about to. The statement must have no FROM.

        Its wait for transactions under a fence is limited. When a call is given up, the server does not notice, and
        would go on waiting.
        """
        limited = f"{sql} FROM set_config('lock_timeout', '{self._core.ttl_ms // 4} ms', true)"
        try:
            await self.call(session, limited, *params)
        except (Lost, Closed):
            return True
        except psycopg.Error as error:
            if error.sqlstate not in (FENCE_REFUSED, NO_OBJECT):  # else there is nothing to give back any more
                self.warn(f"cannot give back {params[0]}: {error}")
                return False
        return True

    async def fail(self, session: str, sql: str, name: object, fence: int, error: BaseException, *more: Any) -> bool:
        """Gives something back as failed, with the text of an error. If the server refuses the text, stores that there
        was one."""
        told = await self.give_back(session, sql, name, fence, describe(error), *more)
        return told or await self.give_back(session, sql, name, fence, NO_TEXT, *more)

    async def replace(self, session: str, why: str) -> None:
        """Closes a session where nothing else makes sure of what it holds, and opens another."""
        if session == self._core.session:
            self.warn(why)
            self._replaced = session
            self._perform(self._core.replaced(monotonic_ms()))
            await self.give_back(session, CLOSE, session)
            self._replaced = None

    def _allow(self, session: str) -> float:
        """Returns for how many seconds a call for a session may last. Raises `Lost` or `Closed`."""
        if session not in (self._core.session, self._replaced):
            raise Lost("the session has ended")
        left = min(self.ttl / 2, self._calls_until - time.monotonic())
        if left <= 0:
            raise Closed("the keeper is closed")
        return left

    def _hear(self, session: str, sent: float, answer: Answer) -> None:
        if self._core.session == session:
            self._perform(self._core.heard(monotonic_ms(), sent, answer))

    # ---- the keeper's own connection ----

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            if action.kind == "connect":
                self._doing = self.spawn(self._connect())
            elif action.kind == "disconnect":
                self._doing = None
                self._line.drop()
            elif action.kind == "cancel":
                self._cancel("the trust in the session is over" if self._core.session else "the session has ended")
            elif action.kind == "ask":
                self.ask()
            elif action.kind == "warn":
                taken = "another process has ended the session: is its name unique?"
                self._warn_once(taken if action.why == "taken" else f"the server refuses: {self._trouble}")
            else:
                self._doing = self.spawn(self._call(*self._statement(action)))
        if self._timer is not None:
            self._timer.cancel()
        pause = self._core.deadline() / 1000 - time.monotonic()
        if pause < math.inf:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, pause), self._tick)
        self._tell_state()
        self.poke()

    def _tick(self) -> None:
        self._perform(self._core.tick(monotonic_ms()))

    def _cancel(self, why: str) -> None:
        for cancel in tuple(self.cancels):
            cancel(why)

    def _statement(self, action: Action) -> tuple[str, tuple[Any, ...]]:
        session = self._core.session
        if action.kind == "open":
            return OPEN, (self.name, f"{self._core.ttl_ms} ms", action.takeover)
        if action.kind == "wait":
            return WAIT, (session, action.revision, f"{action.timeout_ms} ms")
        return (BEAT, (session,)) if self.watch is None else (WATCH, (session, self.watch))

    async def _connect(self) -> None:
        try:
            await self._line.connect(self.ttl / 2)
        except Broken as error:
            self._lose(error)
        else:
            self._happen(self._core.connected)

    async def _call(self, sql: str, params: tuple[Any, ...]) -> None:
        try:
            try:
                rows = await self._line.call(sql, params)
            except psycopg.Error as error:
                if sql != WATCH or error.sqlstate not in CANNOT_WATCH:
                    raise
                # A table that was dropped must not end the session.
                self._warn_once(f"cannot watch {self.watch}: {error}")
                rows = await self._line.call(BEAT, params[:1])
        except Broken as error:
            self._lose(error)
        except psycopg.Error as error:
            self._trouble = error
            self._happen(self._core.failed, error.sqlstate)
        else:
            self._logged.clear()
            self._happen(self._core.answered, Answer(**rows[0]))

    def _lose(self, error: Broken) -> None:
        if asyncio.current_task() is self._doing:
            self._trouble = error.__cause__
            self._warn_once(f"there is no connection: {error}")
        self._happen(self._core.disconnected)

    def _happen(self, event: Callable[..., list[Action]], *given: Any) -> None:
        """Tells the core of an event, unless it is of what was given up."""
        if asyncio.current_task() is self._doing and not self._core.is_closed:
            self._perform(event(monotonic_ms(), *given))

    def _tell_state(self) -> None:
        state, former = self.state, self._told
        if state == former:
            return
        self._told = state
        level = logging.WARNING if state in ("doubting", "lost") else logging.INFO
        log.log(level, "%s: is %s, was %s", self.name, state, former)
        if self.on_state is not None:
            asyncio.get_running_loop().call_soon(self.on_state, state)  # an error of which is not the keeper's

    # ---- open, drain and close ----

    async def open(self) -> None:
        """Opens the first session. Raises the error of the last try if none is trusted within the patience."""
        if self._is_opened:
            raise RuntimeError("the keeper was opened before")
        self._is_opened = True
        try:
            self._tick()
            if not await self.until(lambda: self.draining or self.is_trusted(), self.patience):
                raise self._trouble or TimeoutError(f"no session within {self.patience:g} s")
            self.require_open()
            if self.watch is not None:  # raises what the heartbeats only warn of
                session = str(self._core.session)
                await asyncio.shield(self.spawn(self.call(session, WATCH, session, self.watch)))
        except BaseException:
            await self.drain(0)
            raise

    async def drain(self, seconds: float) -> None:
        """Begins nothing new, and tells all scopes. Closes when all has ended. After this time it cancels the rest, and
        closes within the TTL, whatever the network does."""
        if self._is_opened:
            asyncio.get_running_loop().call_later(seconds, self._hurry)
            self._ending = self._ending or asyncio.ensure_future(self._end())
            await asyncio.shield(self._ending)

    def _hurry(self) -> None:
        self._is_hurried = True
        self.poke()

    async def _end(self) -> None:
        session = self._core.session
        self._perform(self._core.drain(monotonic_ms()))
        if session is not None:
            self.spawn(self.give_back(session, DRAIN, session))
        self.ask()
        await self.until(lambda: self._is_hurried or not self.turns)
        self._calls_until = time.monotonic() + self.ttl / 2
        self._cancel("the keeper is closed")
        await self.until(lambda: not self.turns, self.ttl / 2)
        self._calls_until = time.monotonic() + 0.4 * self.ttl
        if self._core.session is not None:
            await self.give_back(self._core.session, CLOSE, self._core.session)
            # The wait answers that the session has ended, and its connection can be closed with a farewell.
            await self.until(lambda: self._core.is_closed, FAREWELL)
        self._perform(self._core.close(monotonic_ms()))
        await self._errands.close()
        if self._doing is not None:
            self._doing.cancel()  # it connects
            self._doing = None  # nor is anything left that refers to the connection
        await self._line.close()
