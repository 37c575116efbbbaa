"""The protocol of the keeper's connection, without a connection: events with their times in, actions out.

../../README.md is the protocol in words, and ../../vectors is what each library's core does. Times are milliseconds
of a monotonic clock.
"""

import random
from collections.abc import Callable
from typing import Any

MAX_CONNECT_PAUSE, MIN_CONNECT_PAUSE = 1_000, 100
BEAT = 1_000  # between heartbeats where waits are refused
SHORTEST_WAIT = 100  # a shorter one would be a poll
LONGEST_REOPEN, FIRST_REOPEN = 60_000.0, 1_000.0
ERROR_PAUSE = 1_000
NEVER, ALWAYS = float("-inf"), float("inf")
CUT_SHORT = "57014"
ENDED = ("LF003", "55000")  # 55000: a server before 0.3.0


# What the keeper must do: connect, disconnect, beat, cancel or ask; open, with whether to take over; wait, with a
# revision and a timeout; or warn, with the reason.
Action = tuple[Any, ...]


class Core:
    """Decides what a keeper does. It is told events, and after each of them `tick` returns what to do."""

    def __init__(self, ttl_ms: int, takeover: bool, watches: bool, chance: Callable[[], float] = random.random) -> None:
        """`watches`: a heartbeat names the table to watch, and the first one begins it."""
        self.ttl_ms, self.takeover, self.watches, self.chance = ttl_ms, takeover, watches, chance
        self.session: str | None = None
        self.trusted_until = NEVER
        self.is_closed = self._draining = False
        self._actions: list[Action] = []  # that `tick` is to return
        self._connected = self._had_session = False
        self._handed_out = False  # scopes may be trusting
        self._asks = False  # a heartbeat must tell first whether the session still lives
        self._call: str | None = None  # the kind of the call that is under way
        self._called_for: str | None = None  # its session
        self._sent = self._heard = NEVER  # when it was made, and when the newest one that was answered was
        self._revision = self._attempts = 0
        self._next_connect, self._next_call = NEVER, 0.0  # the first tick connects
        self._no_wait_before, self._longest_wait = 0.0, ALWAYS
        self._opened_at, self._reopen_pause = 0.0, FIRST_REOPEN

    # ---- what others ask ----

    def state(self, now: float) -> str:
        if self.is_closed:
            return "closed"
        if self.session is None:
            return "lost" if self._had_session else "starting"
        if now >= self.trusted_until:
            return "doubting"
        return "draining" if self._draining else "trusted"

    def deadline(self) -> float:
        """Returns when the next `tick` is needed; infinity if never."""
        next_step = self._next_call if self._connected else self._next_connect
        if self.is_closed:
            next_step = ALWAYS
        elif self._call is not None:
            next_step = self._sent + self.ttl_ms / 2
        return min(next_step, self.trusted_until) if self._handed_out else next_step

    # ---- events ----

    def connected(self) -> None:
        self._connected, self._longest_wait, self._no_wait_before = True, ALWAYS, 0
        self._asks = self.session is not None

    def disconnected(self, now: float) -> None:
        """The connection is lost, or could not be made. The first new try is at once. Later ones come after a pause
        that doubles."""
        pause = min(MIN_CONNECT_PAUSE * 2 ** (self._attempts - 1), MAX_CONNECT_PAUSE, self.ttl_ms / 6)
        self._next_connect = now + (pause * (0.5 + 0.5 * self.chance()) if self._attempts > 0 else 0)
        self._connected, self._call = False, None
        self._attempts = min(self._attempts + 1, 16)

    def answered(self, now: float, answer: dict[str, Any]) -> None:
        """The answer of the call that is under way: what a heartbeat, a wait or session_open answers."""
        kind, self._call, self._attempts, self._asks = self._call, None, 0, False
        if self._called_for != self.session:  # of a session that is known to have ended meanwhile
            return
        if not answer.get("alive", True):
            self._end(now)
            return
        if kind == "open":
            self.session, self._revision = answer["session"], answer["revision"]
            self._had_session, self._opened_at, self._asks = True, now, self.watches
        if answer.get("reason") == "wait_limit":
            self._no_wait_before = now + self.ttl_ms / 3
        is_news = answer["revision"] > self._revision
        self._believe(now, self._sent, answer["trust_ms"], is_news)
        if is_news:
            self._revision = answer["revision"]
        elif kind != "open" and now < self._no_wait_before:
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
            self._actions.append(("warn", sqlstate))

    def heard(self, now: float, sent: float, trust_ms: int = 0, alive: bool = True) -> None:
        """An answer of another connection, to a call of the present session that was made at `sent`."""
        if alive:
            self._believe(now, sent, trust_ms)
        else:
            self._end(now)

    def drain(self) -> None:
        self._draining = True
        if self.session is None:
            self.close()

    def close(self) -> None:
        """The session was closed, or shall end by itself."""
        self._cancel()
        if self._connected:
            self._actions.append(("disconnect",))
        self.is_closed, self._connected, self._call, self.session = True, False, None, None
        self.trusted_until = NEVER

    def tick(self, now: float) -> list[Action]:
        """Time has passed. Returns all that must be done since the last tick, in this order."""
        if now >= self.trusted_until:
            self._cancel()
        if self._call is not None and now >= self._sent + self.ttl_ms / 2:
            self.disconnected(now)
            self._actions.append(("disconnect",))
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
            self._actions.append(("connect",))
            return
        if self._longest_wait < SHORTEST_WAIT:
            self._no_wait_before, self._longest_wait = now + self.ttl_ms / 3, ALWAYS
        if self.session is None:
            action: Action = ("open", self.takeover and not self._had_session)
        elif self._asks or now < self._no_wait_before:
            action = ("beat",)
        else:
            timeout = min(self.ttl_ms / (3 if now < self.trusted_until else 10), self._longest_wait)
            action = ("wait", self._revision, int(timeout))
        self._call, self._sent, self._called_for = action[0], now, self.session
        self._actions.append(action)

    def _believe(self, now: float, sent: float, trust_ms: float, is_news: bool = False) -> None:
        """Counts the trust from before the call. All scopes ask when it is back, or if there is news."""
        if sent >= self._heard:
            self._heard, self.trusted_until = sent, sent + trust_ms
        is_back = not self._handed_out and now < self.trusted_until
        self._handed_out = self._handed_out or is_back
        if is_back or is_news:
            self._actions.append(("ask",))

    def _end(self, now: float) -> None:
        """The session has ended. While it was trusted, only another process can have ended it, which may have the same
        name: two such processes must not end each other for ever."""
        was_taken = now < self.trusted_until
        self._cancel()
        self.session, self._asks, self.trusted_until, self._next_call = None, False, NEVER, now
        if self._draining:
            self.close()
        elif was_taken:
            if now >= self._opened_at + LONGEST_REOPEN:
                self._reopen_pause = FIRST_REOPEN
            self._next_call += self._reopen_pause * (0.5 + 0.5 * self.chance())
            self._reopen_pause = min(2 * self._reopen_pause, LONGEST_REOPEN)
            self._actions.append(("warn", "taken"))

    def _cancel(self) -> None:
        if self._handed_out:
            self._handed_out = False
            self._actions.append(("cancel",))
