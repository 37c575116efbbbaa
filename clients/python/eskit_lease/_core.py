"""The protocol of the keeper's connection, without a connection: events with their times in, actions out.

../../README.md is the protocol in words, and ../../vectors is what each library's core does. Times are milliseconds
of a monotonic clock.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

MAX_CONNECT_PAUSE, MIN_CONNECT_PAUSE = 1_000, 100
BEAT = 1_000  # between heartbeats where waits are refused
SHORTEST_WAIT = 100  # a shorter one would be a poll
LONGEST_REOPEN, FIRST_REOPEN = 60_000, 1_000
ERROR_PAUSE = 1_000
NEVER, ALWAYS = float("-inf"), float("inf")
CUT_SHORT = "57014"
ENDED = ("LF003", "55000")  # 55000: a server before 0.3.0


@dataclass(frozen=True)
class Answer:
    """What a heartbeat, a wait or session_open answers."""

    alive: bool = True
    trust_ms: int = 0
    revision: int = 0
    reason: str = ""
    session: str | None = None


@dataclass(frozen=True)
class Action:
    """What the keeper must do. `kind` is one of connect, disconnect, open, wait, beat, cancel, ask, warn."""

    kind: str
    takeover: bool | None = None
    timeout_ms: int | None = None
    revision: int | None = None
    why: str | None = None


@dataclass
class _Call:
    kind: str
    sent: float
    session: str | None


@dataclass
class Core:
    ttl_ms: int
    takeover: bool = False
    watches: bool = False  # a heartbeat names the table to watch, and the first one begins it
    chance: Callable[[], float] = random.random

    session: str | None = None
    trusted_until: float = NEVER
    is_draining: bool = False
    is_closed: bool = False
    _actions: list[Action] = field(default_factory=list)  # of the event at hand
    _revision: int = 0
    _connected: bool = False
    _call: _Call | None = None  # under way
    _heard: float = NEVER  # when the newest call that was answered was made
    _handed_out: bool = False  # scopes may be trusting
    _had_session: bool = False
    _opened_at: float = 0
    _attempts: int = 0
    _next_connect: float = NEVER  # the first tick connects
    _next_call: float = 0
    _no_wait_before: float = 0
    _longest_wait: float = ALWAYS
    _reopen_pause: float = FIRST_REOPEN
    _asks: bool = False  # a heartbeat must tell first whether the session still lives

    # ---- what others ask ----

    def state(self, now: float) -> str:
        if self.is_closed:
            return "closed"
        if self.session is None:
            return "lost" if self._had_session else "starting"
        if now >= self.trusted_until:
            return "doubting"
        return "draining" if self.is_draining else "trusted"

    def deadline(self) -> float:
        """Returns when the next `tick` is needed; infinity if never."""
        if self.is_closed:
            return ALWAYS
        if self._call is not None:
            next_step = self._call.sent + self.ttl_ms / 2
        else:
            next_step = self._next_call if self._connected else self._next_connect
        return min(next_step, self.trusted_until) if self._handed_out else next_step

    # ---- events ----

    def connected(self, now: float) -> list[Action]:
        self._connected = True
        self._next_connect = self._longest_wait = ALWAYS
        self._no_wait_before, self._asks = 0, self.session is not None
        return self.tick(now)

    def disconnected(self, now: float) -> list[Action]:
        """The connection is lost, or could not be made."""
        self._lose_connection(now)
        return self.tick(now)

    def answered(self, now: float, answer: Answer) -> list[Action]:
        """The answer of the call that is under way."""
        call, self._call = self._call, None
        assert call is not None
        self._attempts, self._asks = 0, False
        if call.session != self.session:
            return self.tick(now)  # of a session that is known to have ended meanwhile
        if not answer.alive:
            return self._ended(now)
        if call.kind == "open":
            self.session, self._revision = answer.session, answer.revision
            self._had_session, self._opened_at, self._asks = True, now, self.watches
        if answer.reason == "wait_limit":
            self._no_wait_before = now + self.ttl_ms / 3
        is_news = answer.revision > self._revision
        self._believe(now, call.sent, answer.trust_ms, is_news)
        if is_news:
            self._revision = answer.revision
        elif call.kind != "open" and now < self._no_wait_before:
            self._next_call = call.sent + min(BEAT, self.ttl_ms / 3) * (0.75 + 0.25 * self.chance())
        elif call.kind == "wait" and now < call.sent + SHORTEST_WAIT:
            self._next_call = call.sent + SHORTEST_WAIT
        return self.tick(now)

    def failed(self, now: float, sqlstate: str) -> list[Action]:
        """The call that is under way raised an error of the server, on a connection that is still good."""
        call, self._call = self._call, None
        assert call is not None
        if call.session != self.session:
            return self.tick(now)
        if sqlstate in ENDED and call.kind != "open":
            return self._ended(now)
        if sqlstate == CUT_SHORT and call.kind == "wait":
            self._attempts, self._longest_wait = 0, (now - call.sent) / 2
            return self.tick(now)
        self._next_call = now + min(ERROR_PAUSE, self.ttl_ms / 6)
        self._actions.append(Action("warn", why=sqlstate))
        return self.tick(now)

    def heard(self, now: float, sent: float, answer: Answer) -> list[Action]:
        """An answer of another connection, to a call of the present session that was made at `sent`."""
        if self.session is None:
            return []
        if not answer.alive:
            return self._ended(now)
        self._believe(now, sent, answer.trust_ms)
        return self.tick(now)

    def tick(self, now: float) -> list[Action]:
        """Time has passed."""
        if now >= self.trusted_until:
            self._cancel()
        if self._call is not None and now >= self._call.sent + self.ttl_ms / 2:
            self._lose_connection(now)
            self._actions.append(Action("disconnect"))
        if not self.is_closed and self._call is None:
            self._go_on(now)
        actions, self._actions = self._actions, []
        return actions

    def drain(self, now: float) -> list[Action]:
        self.is_draining = True
        return self.tick(now) if self.session else self.close(now)

    def replaced(self, now: float) -> list[Action]:
        """The keeper closes the session itself, and opens another at once: no other process has ended it."""
        self.trusted_until = NEVER
        return self._ended(now)

    def close(self, now: float) -> list[Action]:
        """The session was closed, or shall end by itself."""
        self._cancel()
        if self._connected:
            self._actions.append(Action("disconnect"))
        self.is_closed, self._connected, self._call, self.session = True, False, None, None
        self.trusted_until = NEVER
        return self.tick(now)

    # ---- steps ----

    def _go_on(self, now: float) -> None:
        """Makes the next connection or call, if its time has come."""
        if now < (self._next_call if self._connected else self._next_connect):
            return
        if not self._connected:
            self._next_connect = ALWAYS
            self._actions.append(Action("connect"))
            return
        if self._longest_wait < SHORTEST_WAIT:
            self._no_wait_before, self._longest_wait = now + self.ttl_ms / 3, ALWAYS
        if self.session is None:
            action = Action("open", takeover=self.takeover and not self._had_session)
        elif self._asks or now < self._no_wait_before:
            action = Action("beat")
        else:
            timeout = min(self.ttl_ms / (3 if now < self.trusted_until else 10), self._longest_wait)
            action = Action("wait", timeout_ms=int(timeout), revision=self._revision)
        self._call = _Call(action.kind, now, self.session)
        self._actions.append(action)

    def _believe(self, now: float, sent: float, trust_ms: float, is_news: bool = False) -> None:
        """Counts the trust from before the call. All scopes ask when it is back, or if there is news."""
        if sent >= self._heard:
            self._heard, self.trusted_until = sent, sent + trust_ms
        is_back = not self._handed_out and now < self.trusted_until
        self._handed_out = self._handed_out or is_back
        if is_back or is_news:
            self._actions.append(Action("ask"))

    def _ended(self, now: float) -> list[Action]:
        """The session has ended. While it was trusted, only another process can have ended it, which may have the same
        name: two such processes must not end each other for ever."""
        self._cancel()
        was_taken = now < self.trusted_until
        self.session, self._asks, self.trusted_until, self._next_call = None, False, NEVER, now
        if self.is_draining:
            return self.close(now)
        if was_taken:
            if now >= self._opened_at + LONGEST_REOPEN:
                self._reopen_pause = FIRST_REOPEN
            self._next_call = now + self._reopen_pause * (0.5 + 0.5 * self.chance())
            self._reopen_pause = min(2 * self._reopen_pause, LONGEST_REOPEN)
            self._actions.append(Action("warn", why="taken"))
        return self.tick(now)

    def _cancel(self) -> None:
        if self._handed_out:
            self._actions.append(Action("cancel"))
        self._handed_out = False

    def _lose_connection(self, now: float) -> None:
        """The first new try is at once. Later ones come after a pause that doubles."""
        pause = 0.0
        if self._attempts > 0:
            doubled = MIN_CONNECT_PAUSE * 2 ** (self._attempts - 1)
            pause = min(doubled, MAX_CONNECT_PAUSE, self.ttl_ms / 6) * (0.5 + 0.5 * self.chance())
        self._connected, self._call, self._next_connect = False, None, now + pause
        self._attempts = min(self._attempts + 1, 16)
