"""The keeper: one session, one connection that keeps it alive, and the news for all that the process was handed out.

The core decides; this does what it says.
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Hashable
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
        self.core = Core(round(self.ttl * 1000), self.takeover, self.watch is not None)
        self._errands = Errands(self.make, self.ttl / 2)
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

    # ---- what the verbs ask ----

    @property
    def draining(self) -> bool:
        """Whether nothing new may begin: from the start of a drain or a close, for good."""
        return self.core.is_draining or self.core.is_closed

    @property
    def closing(self) -> bool:
        """Whether all is cancelled: the end of the session gives back what is left."""
        return self._errands.ends_at < math.inf

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
        while session in (self.core.session, self._replaced):
            sent = monotonic_ms()
            try:
                rows = await self._errands.call(sql, params)
            except (psycopg.Error, Broken) as error:
                state = sqlstate_of(error)
                if state == SESSION_ENDED:  # 55000 may mean other things here
                    self._hear(session, sent, Answer(alive=False))
                    raise Lost("the session has ended", sqlstate=state) from error
                if not repeat or not (isinstance(error, Broken) or state in REPEATED):
                    raise
            else:
                answer = rows[0] if rows else {}
                has_ended = answer.get("reason") in ("expired", "unknown_session")
                if has_ended or answer.get("trust_ms") is not None:
                    self._hear(session, sent, Answer(not has_ended, answer["trust_ms"]))
                if not has_ended:
                    return rows
                break
            await self.until(lambda: session not in (self.core.session, self._replaced), pause)
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
        return told or await self.give_back(session, sql, name, fence, NO_TEXT, *more)

    async def replace(self, session: str, why: str) -> None:
        """Closes a session where nothing else makes sure of what it holds, and opens another."""
        if session == self.core.session:
            self.warn(why)
            self._replaced = session
            self.core.replaced(monotonic_ms())
            self._tick()
            await self.give_back(session, CLOSE, session)
            self._replaced = None

    def _hear(self, session: str, sent: float, answer: Answer) -> None:
        if self.core.session == session:
            self.core.heard(monotonic_ms(), sent, answer)
            self._tick()

    # ---- the keeper's own connection ----

    def _tick(self) -> None:
        """Does what the core says, after each event and when time has passed."""
        for action in self.core.tick(monotonic_ms()):
            if action.kind == "connect":
                self._doing = self.spawn(self._do(self._line.connect(self.ttl / 2)))
            elif action.kind == "disconnect":
                self._doing = None
                self._line.drop()
            elif action.kind == "cancel":
                self._cancel("the trust in the session is over" if self.core.session else "the session has ended")
            elif action.kind == "ask":
                self.ask()
            elif action.kind == "warn":
                taken = "another process has ended the session: is its name unique?"
                self._warn_once(taken if action.why == "taken" else f"the server refuses: {self._trouble}")
            else:
                self._doing = self.spawn(self._do(self._call(action, self.core.session)))
        if self._timer is not None:
            self._timer.cancel()
        pause = self.core.deadline() / 1000 - time.monotonic()
        if pause < math.inf:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, pause), self._tick)
        self._tell_state()
        self.poke()

    def _cancel(self, why: str) -> None:
        for cancel in tuple(self.cancels):
            cancel(why)

    async def _call(self, action: Action, session: str | None) -> Row:
        """Makes a call on the keeper's connection."""
        if action.kind == "open":
            return (await self._line.call(OPEN, (self.name, f"{self.core.ttl_ms} ms", action.takeover)))[0]
        if action.kind == "wait":
            return (await self._line.call(WAIT, (session, action.revision, f"{action.timeout_ms} ms")))[0]
        if self.watch is not None:
            try:
                return (await self._line.call(WATCH, (session, self.watch)))[0]
            except psycopg.Error as error:
                if error.sqlstate not in CANNOT_WATCH:
                    raise
                # A table that was dropped must not end the session.
                self._warn_once(f"cannot watch {self.watch}: {error}")
        return (await self._line.call(BEAT, (session,)))[0]

    async def _do(self, work: Awaitable[Row | None]) -> None:
        """Waits for a connection, or the answer of a call, and tells the core, unless that was given up."""
        answer, trouble = None, None
        try:
            answer = await work
        except (Broken, psycopg.Error) as error:
            trouble = error
        if asyncio.current_task() is not self._doing or self.core.is_closed:
            return
        if isinstance(trouble, Broken):
            self._trouble = trouble.__cause__
            self._warn_once(f"there is no connection: {trouble}")
            self.core.disconnected(monotonic_ms())
        elif trouble is not None:
            self._trouble = trouble
            self.core.failed(monotonic_ms(), str(trouble.sqlstate))
        elif answer is None:
            self.core.connected()
        else:
            self._logged.clear()
            self.core.answered(monotonic_ms(), Answer(**answer))
        self._tick()

    def _tell_state(self) -> None:
        state, former = self.core.state(monotonic_ms()), self._told
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
        session = self.core.session
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
