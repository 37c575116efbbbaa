"""The keeper: one session, one connection that keeps it alive, and the news for all that the process was handed out.

The core decides; this does what it says.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any

import psycopg

from ._core import ALWAYS, Core
from ._drivers import Driver
from ._errors import FENCE_REFUSED, SESSION_ENDED, Closed, Lost, describe
from ._line import Broken, Connect, Errands, Line, Row
from ._waiting import Waiting

OPEN = "SELECT session::text, trust_ms, revision FROM eskit_lease.session_open(%s, %s * interval '1ms', takeover => %s)"
ANSWER = "SELECT alive, coalesce(trust_ms, 0) AS trust_ms, coalesce(revision, 0) AS revision, reason FROM eskit_lease"
BEAT = f"{ANSWER}.session_heartbeat(%s::uuid)"
WATCH = f"{ANSWER}.session_watch(%s::uuid, %s::regclass)"
WAIT = f"{ANSWER}.session_wait(%s::uuid, %s::bigint, %s * interval '1 ms')"
DRAIN = "SELECT eskit_lease.session_drain(%s::uuid)"
CLOSE = "SELECT eskit_lease.session_close(%s::uuid)"

# The server asks to repeat these calls: a lock that is not free, a cancel or a `statement_timeout`, and a snapshot that
# is too old.
REPEATED = ("55P03", "57014", "40001")
NO_OBJECT = "42704"
CANNOT_WATCH = ("42P01", "42501", "42809")
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
        self.draining = False  # nothing new may begin: from the start of a drain or a close, for good
        self.core = Core(round(self.ttl * 1000), self.takeover, self.watch is not None)
        self._errands = Errands(self.make, self.ttl / 2)
        self._line = Line(self.make)
        self._doing: asyncio.Task[None] | None = None  # what the line does; None if that was given up
        self._timer: asyncio.TimerHandle | None = None
        self._told = "starting"  # the state that was told last
        self._trouble: BaseException | None = None  # the error of the last try
        self._logged: set[str] = set()  # the warnings since the last answer, as each is told once
        self._is_opened = self._is_hurried = False  # hurried: a drain waits no longer
        self._ending: asyncio.Task[None] | None = None

    # ---- what the verbs ask ----

    def is_trusted(self, session: str | None = None) -> bool:
        """Whether the session may be believed to live; if given one, whether it is this one."""
        return session in (None, self.core.session) and monotonic_ms() < self.core.trusted_until

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
        """Logs a text, but not again before the keeper's connection has answered."""
        if text not in self._logged:
            self._logged.add(text)
            log.warning("%s: %s", self.name, text, exc_info=trace)

    # ---- calls on the second connection ----

    async def call(self, session: str, sql: str, *params: Any, repeat: bool = True) -> list[Row]:
        """Runs a statement for a session on the second connection, and returns its rows.

        Repeats it after a lost connection, 55P03, 57014 and 40001, for as long as the session is not known to have
        ended; so it must not matter how often the server runs it. Without `repeat`, raises `Broken` or the driver's
        error. Raises `Lost` once the session has ended, and `Closed` half of the TTL after a close began.
        """
        pause = FIRST_PAUSE
        while session == self.core.session:
            sent = monotonic_ms()
            try:
                rows = await self._errands.call(sql, params)
                answer = rows[0] if rows else {}
                has_ended = answer.get("reason") in ("expired", "unknown_session")
                if has_ended or answer.get("trust_ms") is not None:
                    self._hear(session, sent, answer["trust_ms"], not has_ended)
                return rows
            except psycopg.Error as error:
                if error.sqlstate == SESSION_ENDED:  # 55000 may mean other things here
                    self._hear(session, sent, alive=False)
                    raise Lost("the session has ended", sqlstate=SESSION_ENDED) from error
                if not repeat or not (isinstance(error, Broken) or error.sqlstate in REPEATED):
                    raise
            await self.until(lambda: session != self.core.session, pause)
            pause = min(2 * pause, LONGEST_PAUSE, self.ttl / 6)
        raise Lost("the session has ended")

    async def give_back(self, session: str, sql: str, *params: Any) -> bool:
        """Runs a statement that gives something back, and says whether nothing is left: also if the session has ended,
        or is about to. The statement must have no FROM.

        Its wait for transactions under a fence is limited. When a call is given up, the server does not notice, and
        would go on waiting.
        """
        limited = f"{sql} FROM set_config('lock_timeout', '{self.core.ttl_ms // 4} ms', true)"
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
        return told or await self.give_back(session, sql, name, fence, "the error's text could not be stored", *more)

    def replace(self, session: str, why: str) -> None:
        """Closes a session where nothing else makes sure of what it holds. Another one opens."""
        self.warn(why)
        self._hear(session, monotonic_ms())  # first the trust ends: the keeper is no other process, as it would warn
        self._hear(session, monotonic_ms(), alive=False)
        self.spawn(self._errands.call(CLOSE, (session,)))  # if this fails, it ends by its TTL

    def _hear(self, session: str, sent: float, trust_ms: int = 0, alive: bool = True) -> None:
        if session == self.core.session:
            self.core.heard(monotonic_ms(), sent, trust_ms, alive)
            self._tick()

    # ---- the keeper's own connection ----

    def _tick(self) -> None:
        """Does what the core says, after each event and when time has passed."""
        for kind, *given in self.core.tick(monotonic_ms()):
            if kind == "connect":
                self._doing = self.spawn(self._do(self._line.connect, self.ttl / 2))
            elif kind == "disconnect":
                self._doing = None
                self._line.drop()
            elif kind == "cancel":
                self._cancel("the trust in the session is over" if self.core.session else "the session has ended")
            elif kind == "ask":
                self.ask()
            elif kind == "warn":
                taken = "another process has ended the session: is its name unique?"
                self.warn(taken if given == ["taken"] else f"the server refuses: {self._trouble}")
            else:
                self._doing = self.spawn(self._do(self._call, kind, self.core.session, *given))
        if self._timer is not None:
            self._timer.cancel()
        pause = self.core.deadline() / 1000 - time.monotonic()
        if pause < ALWAYS:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, pause), self._tick)
        state = self.core.state(monotonic_ms())
        if state != self._told:
            level = logging.WARNING if state in ("doubting", "lost") else logging.INFO
            log.log(level, "%s: is %s, was %s", self.name, state, self._told)
            self._told = state
            if self.on_state is not None:
                asyncio.get_running_loop().call_soon(self.on_state, state)  # an error of which is not the keeper's
        self.poke()

    def _cancel(self, why: str) -> None:
        for cancel in tuple(self.cancels):
            cancel(why)

    async def _call(self, kind: str, session: str | None, *given: Any) -> list[Row]:
        """Makes a call on the keeper's connection."""
        if kind == "open":
            return await self._line.call(OPEN, (self.name, self.core.ttl_ms, *given))
        if kind == "wait":
            return await self._line.call(WAIT, (session, *given))
        if self.watch is not None:
            try:
                return await self._line.call(WATCH, (session, self.watch))
            except psycopg.Error as error:
                if error.sqlstate not in CANNOT_WATCH:
                    raise
                # A table that was dropped must not end the session.
                self.warn(f"cannot watch {self.watch}: {error}")
        return await self._line.call(BEAT, (session,))

    async def _do(self, work: Callable[..., Awaitable[list[Row] | None]], *given: Any) -> None:
        """Waits for a connection, or the answer of a call, and tells the core, unless that was given up."""
        (answer,) = await asyncio.gather(work(*given), return_exceptions=True)
        if asyncio.current_task() is not self._doing or self.core.is_closed:
            return
        if isinstance(answer, Broken):
            self._trouble = answer.__cause__
            self.warn(f"there is no connection: {answer}")
            self.core.disconnected(monotonic_ms())
        elif isinstance(answer, BaseException):
            self._trouble = answer
            self.core.failed(monotonic_ms(), getattr(answer, "sqlstate", None) or "")
        elif answer is None:
            self.core.connected()
        else:
            self._logged.clear()
            self.core.answered(monotonic_ms(), answer[0])
        self._tick()

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
                session = str(self.core.session)
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
        session, self.draining = self.core.session, True
        self.core.drain()
        self._tick()
        if session is not None:
            self.spawn(self.give_back(session, DRAIN, session))
        self.ask()
        await self.until(lambda: self._is_hurried or not self.turns)
        self._errands.ends_at = time.monotonic() + self.ttl / 2
        self._cancel("the keeper is closed")
        await self.until(lambda: not self.turns, self.ttl / 2)
        self._errands.ends_at = time.monotonic() + 0.4 * self.ttl
        if self.core.session is not None:
            await self.give_back(self.core.session, CLOSE, self.core.session)
            # The wait answers that the session has ended, and its connection can be closed with a farewell.
            await self.until(lambda: self.core.is_closed, FAREWELL)
        self.core.close()
        self._tick()
        await self._errands.close()
        if self._doing is not None:
            self._doing.cancel()  # it connects
            self._doing = None  # nor is anything left that refers to the connection
        await self._line.close()
