"""Shared by tests in which transactions cross each other and the worker."""

from client import Session, stat
from conftest import wait_until
from test_attacks import is_granted


def waits(watcher, conn):
    """Returns whether a connection's statement waits for a lock."""
    waiting = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
    return watcher.execute(waiting, (conn.info.backend_pid,)).fetchone()


def opened(conn, *args, **kw):
    """Opens a session and commits, on a connection that is not in autocommit."""
    session = Session(conn, *args, **kw)
    conn.commit()
    return session


def prepare(conn, name):
    conn.execute(f"PREPARE TRANSACTION '{name}'")
    conn.commit()


def worker_passes(conn, count=2):
    """Waits until the worker has ended `count` more passes, at least one begun after this call."""
    stirring, before = Session(conn, "stirring", "60 s"), stat(conn, "sweeps")

    def passed():
        stirring.take("stirred")
        stirring.release("stirred")
        return stat(conn, "sweeps") >= before + count

    wait_until(passed, pause=0.02)
    stirring.close()


def worker_serves_others(connect):
    holder, waiter, watcher = Session(connect(), "bystander", attach=True), Session(connect(), ttl="60 s"), connect()
    holder.take("elsewhere")
    waiter.queue("elsewhere")
    holder.conn.close()
    is_granted(watcher, waiter, "elsewhere")
    waiter.close()


def rows_of(conn, table, column, session):
    return conn.execute(f"SELECT count(*) FROM eskit_lease.{table} WHERE {column} = %s", (session.id,)).fetchone()[0]
