"""What the faces with asyncio and without have in common: the settings of a keeper, and what it tells of itself."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import conninfo

from ._keeper import Keeper
from ._line import Connect, Connection

DRAIN = 10.0  # seconds
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Face:
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
        """Opens nothing yet.

        Args:
            connection: a connection string of libpq; what it leaves out comes from the PG* variables. Or a function
                that makes a `psycopg.AsyncConnection` when awaited, for instance for passwords that expire.
            name: the consumer's name. By default the host, the process id and a random part.
            ttl: seconds for which the session lives without a heartbeat.
            takeover: inherit from the session of this name that a former process has left. Needs a name that no two
                processes have at a time.
            patience: seconds for which opening tries.
            watch: the name of a table of events, numbered by `eskit_lease.position_next()`. New events are news to all
                scopes.
            on_state: called with the state whenever it changes: trusted, doubting, lost, draining, closed.
        """
        if takeover and name is None:
            raise ValueError("takeover needs a name, which no other process has")
        if not ttl > 0:
            raise ValueError("ttl must be positive")
        connect = connector(connection, ttl) if isinstance(connection, str) else connection
        name = name or f"{socket.gethostname()[:200]}-{os.getpid()}-{random.SystemRandom().getrandbits(32):08x}"
        self._signals: dict[int, Any] = {}  # that drain, and what they did before
        self._keeper = Keeper(connect, name, ttl, takeover, patience, watch, on_state)

    @property
    def name(self) -> str:
        """The consumer's name."""
        return self._keeper.name

    @property
    def state(self) -> str:
        """starting, trusted, doubting, lost, draining or closed."""
        return self._keeper.state

    @property
    def session(self) -> str | None:
        """The uuid of the session, for SQL of your own; None if there is none. Keep it private."""
        return self._keeper.session

    def _drain_soon(self, seconds: float) -> None:
        self._draining = asyncio.ensure_future(self._keeper.drain(seconds))


def connector(dsn: str, ttl: float) -> Connect:
    """Returns a function that connects by a connection string.

    A silent host must leave time for the next one of the string, so each has a share of half of the TTL, unless the
    string says otherwise.
    """
    given = conninfo.conninfo_to_dict(dsn)
    hosts = str(given.get("host") or given.get("hostaddr") or os.environ.get("PGHOST", "")).split(",")
    options: dict[str, Any] = {"fallback_application_name": "eskit_lease"}
    if "connect_timeout" not in given and "PGCONNECT_TIMEOUT" not in os.environ:
        options["connect_timeout"] = max(2, int(ttl / 2 / len(hosts)))

    async def connect() -> Connection:
        return await psycopg.AsyncConnection.connect(dsn, autocommit=True, prepare_threshold=None, **options)

    return connect
