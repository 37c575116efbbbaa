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
class Core:
    """Decides what a keeper does. It is told events, and after each of them `tick` returns what to do."""

    ttl_ms: int
    takeover: bool = False
    watches: bool = False  # a heartbeat names the table to watch, and the first one begins it
    chance: Callable[[], float] = random.random

    session: str | None = None
    trusted_until: float = NEVER
    is_draining: bool = False
    is_closed: bool = False
    _actions: list[Action] = field(default_factory=list)  # that `tick` is to return
    _revision: int = 0
    _connected: bool = False
    _call: str | None = None  # the kind of the call that is under way
    _sent: float = NEVER  # when it was made
    _called_for: str | None = None  # its session
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
            next_step = self._sent + self.ttl_ms / 2
        else:
            next_step = self._next_call if self._connected else self._next_connect
        return min(next_step, self.trusted_until) if self._handed_out else next_step

    # ---- events ----

    def connected(self) -> None:
        self._connected, self._longest_wait, self._no_wait_before = True, ALWAYS, 0
        self._asks = self.session is not None

    def disconnected(self, now: float) -> None:
        """The connection is lost, or could not be made. The first new try is at once. Later ones come after a pause
        that doubles."""
        pause = 0.0
        if self._attempts > 0:
            doubled = MIN_CONNECT_PAUSE * 2 ** (self._attempts - 1)
            pause = min(doubled, MAX_CONNECT_PAUSE, self.ttl_ms / 6) * (0.5 + 0.5 * self.chance())
        self._connected, self._call, self._next_connect = False, None, now + pause
        self._attempts = min(self._attempts + 1, 16)

    def answered(self, now: float, answer: Answer) -> None:
        """The answer of the call that is under way."""
        kind, self._call, self._attempts, self._asks = self._call, None, 0, False
        if self._called_for != self.session:  # of a session that is known to have ended meanwhile
            return
        if not answer.alive:
            self._end(now)
            return
        if kind == "open":
            self.session, self._revision = answer.session, answer.revision
            self._had_session, self._opened_at, self._asks = True, now, self.watches
        if answer.reason == "wait_limit":
            self._no_wait_before = now + self.ttl_ms / 3
        is_news = answer.revision > self._revision
        self._revision = max(self._revision, answer.revision)
        self._believe(now, self._sent, answer.trust_ms, is_news)
        if is_news or kind == "open":
            return
        if now < self._no_wait_before:
            self._next_call = self._sent + min(BEAT, self.ttl_ms / 3) * (0.75 + 0.25 * self.chance())
        elif kind == "wait" and now < self._sent + SHORTEST_WAIT:
            self._next_call = self._sent + SHORTEST_WAIT

    def failed(self, now: float, sqlstate: str) -> None:
        """The call that is under way raised an error of the server, on a connection that is still good."""
        kind, self._call = self._call, None
        if self._called_for != self.session:
            return
        if sqlstate in ENDED and kind != "open":
            self._end(now)
        elif sqlstate == CUT_SHORT and kind == "wait":
            self._attempts, self._longest_wait = 0, (now - self._sent) / 2
        else:
            self._next_call = now + min(ERROR_PAUSE, self.ttl_ms / 6)
            self._actions.append(Action("warn", why=sqlstate))

    def heard(self, now: float, sent: float, answer: Answer) -> None:
        """An answer of another connection, to a call of the present session that was made at `sent`."""
        if answer.alive:
            self._believe(now, sent, answer.trust_ms)
        else:
            self._end(now)

    def replaced(self, now: float) -> None:
        """The keeper closes the session itself, and opens another at once: no other process has ended it."""
        self.trusted_until = NEVER
        self._end(now)

    def drain(self) -> None:
        self.is_draining = True
        if self.session is None:
            self.close()

    def close(self) -> None:
        """The session was closed, or shall end by itself."""
        self._cancel()
        if self._connected:
            self._actions.append(Action("disconnect"))
        self.is_closed, self._connected, self._call, self.session = True, False, None, None
        self.trusted_until = NEVER

    def tick(self, now: float) -> list[Action]:
        """Time has passed. Returns all that must be done since the last tick, in this order."""
        if now >= self.trusted_until:
            self._cancel()
        if self._call is not None and now >= self._sent + self.ttl_ms / 2:
            self.disconnected(now)
            self._actions.append(Action("disconnect"))
        if not self.is_closed and self._call is None:
            self._go_on(now)
        actions, self._actions = self._actions, []
        return actions

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
        self._call, self._sent, self._called_for = action.kind, now, self.session
        self._actions.append(action)

    def _believe(self, now: float, sent: float, trust_ms: float, is_news: bool = False) -> None:
        """Counts the trust from before the call. All scopes ask when it is back, or if there is news."""
        if sent >= self._heard:
            self._heard, self.trusted_until = sent, sent + trust_ms
        is_back = not self._handed_out and now < self.trusted_until
        self._handed_out = self._handed_out or is_back
        if is_back or is_news:
            self._actions.append(Action("ask"))

    def _end(self, now: float) -> None:
        """The session has ended. While it was trusted, only another process can have ended it, which may have the same
        name: two such processes must not end each other for ever."""
        was_taken = now < self.trusted_until
        self._cancel()
        self.session, self._asks, self.trusted_until, self._next_call = None, False, NEVER, now
        if self.is_draining:
            self.close()
        elif was_taken:
            if now >= self._opened_at + LONGEST_REOPEN:
                self._reopen_pause = FIRST_REOPEN
            self._next_call += self._reopen_pause * (0.5 + 0.5 * self.chance())
            self._reopen_pause = min(2 * self._reopen_pause, LONGEST_REOPEN)
            self._actions.append(Action("warn", why="taken"))

    def _cancel(self) -> None:
        if self._handed_out:
            self._handed_out = False
            self._actions.append(Action("cancel"))
