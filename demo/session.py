"""The part of eskit_lease that every consumer needs: a session that knows how long it may be believed."""

import json
import signal
import threading
import time

stopping = threading.Event()


def log(event, **data):
    print(json.dumps({"at": time.time(), "event": event} | data), flush=True)


def stop_on_sigterm():
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())


class Lost(Exception):
    """The session has ended, or may have: another session may have what it held."""


class Session:
    """A session that lives by its heartbeats. With attach it also ends with this connection, so a crash is noticed at
    once and not after the TTL. With takeover it inherits from the living sessions of this consumer, which end."""

    def __init__(self, db, consumer, ttl, attach=False, takeover=False):
        self.db, self.ttl = db, ttl
        opening = "SELECT * FROM eskit_lease.session_open(%s, %s, attach => %s, takeover => %s)"
        self.id = self._ask(opening, consumer, f"{ttl} s", attach, takeover).session

    def _ask(self, sql, *params):
        started = time.monotonic()  # trust counts from before the call, as the answer may have been long on its way
        answer = self.db.execute(sql, params).fetchone()
        if not getattr(answer, "alive", True):
            raise Lost(answer.reason)
        self.trusted_until = started + answer.trust_ms / 1000
        self.next_heartbeat = started + self.ttl / 3
        self.revision = answer.revision
        return answer

    def heartbeat(self):
        self._ask("SELECT * FROM eskit_lease.session_heartbeat(%s)", self.id)

    def watch(self, outbox):
        """A heartbeat that lets the wait end also when new rows of this table can be read."""
        self._ask("SELECT * FROM eskit_lease.session_watch(%s, %s)", self.id, outbox)

    def wait(self, revision, timeout=None):
        """A heartbeat that waits until the session has a greater revision than this one, or the next heartbeat is due."""
        answer = self._ask("SELECT * FROM eskit_lease.session_wait(%s, %s, %s::interval)", self.id, revision, timeout)
        if answer.reason == "wait_limit":  # answered at once, as too many are waiting: wait here
            time.sleep(answer.retry_ms / 1000)

    def must_be_trusted(self):
        while time.monotonic() >= self.trusted_until:
            self.wait(self.revision, "100 ms")  # raises Lost if the session has ended
