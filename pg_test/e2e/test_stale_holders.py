"""A worker is stopped past its deadline in the middle of its work. When it goes on, another worker has the lease: the
stale worker is refused, and its result is rolled back."""

import os
import signal
import subprocess
import sys

import psycopg
import pytest
from client import Session, call, rows
from conftest import wait_until

# Takes the work, writes the result in a transaction, and prints the fence; finishes when told to, and prints the
# outcome.
HOLDER = """
import sys
import psycopg
dsn, take, finish = sys.argv[1:]
with psycopg.connect(dsn, autocommit=True) as conn:
    session = conn.execute("SELECT session FROM eskit_lease.session_open('stale', '1 s')").fetchone()[0]
    work = conn.execute(take, {"session": session}).fetchone()
    conn.execute("BEGIN")
    conn.execute("INSERT INTO results VALUES ('stale')")
    print(*work, flush=True)
    sys.stdin.readline()
    try:
        conn.execute(finish, {"work": work[0], "fence": work[1]})
        conn.execute("COMMIT")
        print("committed", flush=True)
    except psycopg.Error as error:
        conn.execute("ROLLBACK")
        print(error.sqlstate, flush=True)
"""


class Item:
    take = "SELECT id, fence FROM eskit_lease.item_claim('work', %(session)s)"
    finish = "SELECT eskit_lease.item_done(ARRAY[%(work)s::bigint], %(fence)s)"

    @staticmethod
    def prepare(conn):
        call(conn, "queue_create", "work")
        call(conn, "item_add", "work", psycopg.types.json.Jsonb("once"))

    @staticmethod
    def again(session):
        """Returns the work and fence that the next session gets, once the work is free."""
        return next(((item.id, item.fence) for item in rows(session.conn, "item_claim", "work", session.id)), None)


class Execution:
    take = "SELECT 'work', fence FROM eskit_lease.execution_begin('work', %(session)s, retry_in_doubt => true)"
    finish = "SELECT eskit_lease.execution_finish(%(work)s, %(fence)s)"

    @staticmethod
    def prepare(conn):
        pass

    @staticmethod
    def again(session):
        answer = call(session.conn, "execution_begin", "work", session.id, True)
        return ("work", answer.fence) if answer.first else None


class FencedTable:
    take = "SELECT 'work', fence FROM eskit_lease.lease_acquire('work', %(session)s)"
    finish = "INSERT INTO fenced SELECT %(work)s FROM eskit_lease.fence_check('work', %(fence)s)"

    @staticmethod
    def prepare(conn):
        conn.execute("CREATE TABLE fenced (what text)")
        call(conn, "table_fence", "fenced", "work")

    @staticmethod
    def again(session):
        answer = session.acquire("work")
        return ("work", answer.fence) if answer.granted else None


class UncheckedWrite(FencedTable):
    finish = "INSERT INTO fenced SELECT format('%%s %%s', %(work)s::text, %(fence)s::text)"


@pytest.mark.parametrize("kind", [Item, Execution, FencedTable, UncheckedWrite])
@pytest.mark.parametrize("worker", ["worker", "no worker"])
def test_refused_with_its_result(server, db, connect, kind, worker, request):
    if worker == "no worker":
        request.getfixturevalue("no_worker")
    conn = connect()
    conn.execute("CREATE TABLE results (by text)")
    kind.prepare(conn)
    successor = Session(conn, "successor", ttl="60 s")
    command = [sys.executable, "-c", HOLDER, server.dsn(db), kind.take, kind.finish]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as stale:
        try:
            fence = int(stale.stdout.readline().split()[1])
            assert kind.again(successor) is None
            os.kill(stale.pid, signal.SIGSTOP)
            work, newer = wait_until(lambda: kind.again(successor), pause=0.02)
            assert newer > fence
            os.kill(stale.pid, signal.SIGCONT)
            stale.stdin.write("finish\n")
            stale.stdin.flush()
            assert stale.stdout.readline().strip() == ("LF002" if kind is UncheckedWrite else "LF001")
        finally:
            stale.kill()
    with conn.transaction():
        conn.execute("INSERT INTO results VALUES ('successor')")
        conn.execute(kind.finish if kind is not UncheckedWrite else FencedTable.finish, {"work": work, "fence": newer})
    assert conn.execute("SELECT by FROM results").fetchall() == [("successor",)]
