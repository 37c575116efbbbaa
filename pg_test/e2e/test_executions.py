"""Run-once keys with real processes: callers by the hundred, kills, pauses, crashes, dumps."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from client import Session, call
from conftest import Server, wait_until

CALLERS = 100


@pytest.fixture(scope="module")
def durable():
    server = Server("e2e-executions", "fsync = on", f"max_connections = {CALLERS + 20}")
    server.query("CREATE EXTENSION eskit_lease")
    yield server
    server.stop()


@pytest.fixture
def clean(durable):
    """Gives the server, without keys of other tests."""
    durable.query("DELETE FROM eskit_lease._executions")
    return durable


def begin(session, key, retry_in_doubt=False):
    return call(session.conn, "execution_begin", key, session.id, retry_in_doubt)


def finish(conn, key, fence, result=None):
    return call(conn, "execution_finish", key, fence, result)


def refused(conn, function, *args):
    """Returns the SQLSTATE that a call raises."""
    with pytest.raises(psycopg.Error) as raised:
        call(conn, function, *args)
    return raised.value.sqlstate


def state(conn, key):
    found = conn.execute("SELECT state FROM eskit_lease.executions WHERE key = %s", (key,)).fetchone()
    return found and found[0]


def test_one_first_of_a_hundred(clean):
    """One of a hundred callers begins a new key, one that is free again, and one in doubt that was begun with
    retry_in_doubt."""
    watcher = clean.connect()
    with ThreadPoolExecutor(CALLERS) as pool:
        sessions = list(pool.map(lambda i: Session(clean.connect(), f"caller {i}", ttl="120 s"), range(CALLERS)))
        start = threading.Barrier(CALLERS)

        def ask(session, key, retry_in_doubt):
            start.wait(timeout=60)
            return begin(session, key, retry_in_doubt)

        def race(key, retry_in_doubt=False):
            """Returns the session that began the attempt, and its fence."""
            answers = list(pool.map(ask, sessions, [key] * CALLERS, [retry_in_doubt] * CALLERS))
            first = [i for i, answer in enumerate(answers) if answer.first]
            assert len(first) == 1, (key, answers)
            assert {answer.state for answer in answers} == {"running"}, (key, answers)
            assert [i for i, answer in enumerate(answers) if answer.fence is not None] == first, (key, answers)
            return first[0], answers[first[0]].fence

        fences = []
        for i in range(5):
            winner, fence = race(f"new {i}")
            assert call(sessions[winner].conn, "execution_fail", f"new {i}", fence, "not yet", True)
            again, fenced_again = race(f"new {i}", retry_in_doubt=True)
            assert fenced_again > fence
            assert sessions[again].close()
            sessions[again] = Session(sessions[again].conn, "caller again", ttl="120 s")
            third, last = race(f"new {i}")
            assert last > fenced_again
            assert finish(sessions[third].conn, f"new {i}", last, "1")
            assert {(answer.first, answer.state, answer.result) for answer in pool.map(lambda s: begin(s, f"new {i}"), sessions)} == {
                (False, "done", 1)
            }
            fences += [fence, fenced_again, last]
        assert watcher.execute("SELECT count(*), sum(attempts) FROM eskit_lease.executions WHERE state = 'done'").fetchone() == (5, 15)
        assert len(set(fences)) == 15
        for session in sessions:
            session.close()
            session.conn.close()
    watcher.close()


def test_one_row_for_a_key(clean):
    """Keys are begun, finished, failed, rolled back and removed, beside an old snapshot: no key ever has two rows, or
    is done twice before it is removed."""
    keys, workers = [f"key {i}" for i in range(10)], 4
    old, watcher = clean.connect(), clean.connect()
    old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    old.execute("SELECT count(*) FROM eskit_lease._executions")
    watcher.execute("DROP TABLE IF EXISTS done; CREATE TABLE done (key text, fence bigint PRIMARY KEY)")
    stop = threading.Event()

    def work(number):
        chance, session = random.Random(number), Session(clean.connect(), f"worker {number}", ttl="60 s")
        while not stop.is_set():
            with session.conn.transaction(force_rollback=chance.random() < 0.3):
                key = chance.choice(keys)
                answer = begin(session, key)
                if answer.first and chance.random() < 0.5:
                    assert call(session.conn, "execution_fail", key, answer.fence, "no", chance.random() < 0.9)
                elif answer.first:
                    session.conn.execute("INSERT INTO done VALUES (%s, %s)", (key, answer.fence))
                    assert finish(session.conn, key, answer.fence)

    removed = 0
    with ThreadPoolExecutor(workers) as pool:
        running = [pool.submit(work, number) for number in range(workers)]
        until = time.monotonic() + 5
        while time.monotonic() < until and not any(future.done() for future in running):
            removed += len(watcher.execute("DELETE FROM eskit_lease._executions WHERE state IN ('done', 'failed') RETURNING key").fetchall())
            assert not watcher.execute("SELECT key FROM eskit_lease._executions GROUP BY key HAVING count(*) > 1").fetchall()
        stop.set()
        for future in running:
            future.result()
    done, left = watcher.execute("SELECT (SELECT count(*) FROM done), (SELECT count(*) FROM eskit_lease._executions WHERE state = 'done')").fetchone()
    assert removed > 100 and done <= removed + left
    watcher.execute("DROP TABLE done")
    for conn in (old, watcher):
        conn.close()


def test_each_row_once_whoever_is_killed(clean):
    """Key and work in one transaction: connections are killed all the time, and in the end each key has one row of
    work."""
    keys, workers = [f"order {i}" for i in range(60)], 6
    admin = clean.connect()
    admin.execute("CREATE TABLE worked (key text)")
    stop = threading.Event()

    def work(number):
        while True:
            try:
                with clean.connect() as conn:
                    session = Session(conn, f"worker {number}", ttl="60 s")
                    todo = keys[:]
                    random.shuffle(todo)
                    states = set()
                    for key in todo:
                        with conn.transaction():
                            answer = begin(session, key)
                            states.add(answer.state)
                            if answer.first:
                                conn.execute("INSERT INTO worked VALUES (%s)", (key,))
                                conn.execute("SELECT pg_sleep(0.005)")
                                assert finish(conn, key, answer.fence, "true")
                    if states == {"done"}:
                        return
            except psycopg.OperationalError:
                pass

    def kill():
        """Kills a backend after each new row, at most 20 times: so kills happen only during the work, which still comes
        to an end."""
        victims = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        kills = rows = 0
        while not stop.wait(0.005) and kills < 20:
            (now,) = admin.execute("SELECT count(*) FROM worked").fetchone()
            if now > rows:
                kills += len(admin.execute(f"{victims} ORDER BY random() LIMIT 1").fetchall())
                rows = now
        return kills

    with ThreadPoolExecutor(workers + 1) as pool:
        killer = pool.submit(kill)
        for done in [pool.submit(work, i) for i in range(workers)]:
            done.result(timeout=110)
        stop.set()
        assert killer.result() > 0
    assert admin.execute("SELECT count(*), count(DISTINCT key) FROM worked").fetchone() == (len(keys), len(keys))
    assert admin.execute("SELECT DISTINCT state, attempts FROM eskit_lease.executions").fetchall() == [("done", 1)]
    admin.execute("DROP TABLE worked")
    admin.close()


# Begins a key, prints the fence, finishes the key when told to, and prints the outcome.
RUNNER = """
import sys
import psycopg
conn = psycopg.connect(sys.argv[1], autocommit=True)
session = conn.execute("SELECT session FROM eskit_lease.session_open('runner', %s)", (sys.argv[2],)).fetchone()[0]
fence = conn.execute("SELECT fence FROM eskit_lease.execution_begin('k', %s)", (session,)).fetchone()[0]
print(fence, session, flush=True)
sys.stdin.readline()
try:
    print(conn.execute("SELECT eskit_lease.execution_finish('k', %s)", (fence,)).fetchone()[0], flush=True)
except psycopg.Error as error:
    print(error.sqlstate, flush=True)
"""


@pytest.fixture
def runner(server, db):
    """Gives a function that starts a runner, and returns its process and fence."""
    started = []

    def start(ttl):
        command = [sys.executable, "-c", RUNNER, server.dsn(db), ttl]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(child)
        return child, int(child.stdout.readline().split()[0])

    yield start
    for child in started:
        child.kill()
        child.communicate()


@pytest.mark.parametrize("worker", ["worker", "no worker"])
def test_runner_killed_between_begin_and_finish(server, db, connect, runner, worker, request):
    if worker == "no worker":
        request.getfixturevalue("no_worker")
    conn = connect()
    child, fence = runner("2 s")
    other = Session(conn, "other", ttl="60 s")
    child.kill()
    child.wait()
    wait_until(lambda: begin(other, "k").state == "in_doubt")
    listed = "SELECT key, consumer, fence, attempts, finished_at FROM eskit_lease.executions WHERE state = 'in_doubt'"
    assert conn.execute(listed).fetchall() == [("k", "runner", fence, 1, None)]
    assert not begin(other, "k", True).first, "never run again unasked"
    assert refused(conn, "execution_finish", "k", fence) == "LF001"
    assert call(conn, "execution_resolve", "k", "retry")
    assert server.logged("resolves execution \"k\"")
    again = begin(other, "k")
    assert again.first and again.fence > fence
    assert refused(conn, "execution_finish", "k", fence) == "LF001"
    assert refused(conn, "execution_fail", "k", fence, "late") == "LF001"
    assert finish(conn, "k", again.fence, '"by the other"')
    assert begin(other, "k").result == "by the other"


def test_paused_runner_wakes_up_too_late(db, connect, runner):
    conn = connect()
    child, fence = runner("2 s")
    other = Session(conn, "other", ttl="60 s")
    os.kill(child.pid, signal.SIGSTOP)
    wait_until(lambda: state(conn, "k") == "in_doubt")
    assert call(conn, "execution_resolve", "k", "done", '"the mail has arrived"')
    os.kill(child.pid, signal.SIGCONT)
    child.stdin.write("finish\n")
    child.stdin.flush()
    assert child.stdout.readline().strip() == "LF001"
    answer = begin(other, "k")
    assert (answer.first, answer.state, answer.result) == (False, "done", "the mail has arrived")


def test_finish_begun_in_time_holds_past_the_deadline(connect):
    """Once the finish has passed its check, no caller begins or resolves the key before the commit; then it is done."""
    conn, other = connect(autocommit=False), connect()
    session, rival = Session(other, "runner", ttl="3 s"), Session(other, "rival", ttl="60 s")
    fence = begin(session, "k", True).fence
    assert finish(conn, "k", fence, "1")
    wait_until(lambda: session.expired(other))
    for _ in range(20):
        assert begin(rival, "k", True).state == "running"
        assert refused(other, "execution_resolve", "k", "retry") == "55P03"
    conn.commit()
    assert begin(rival, "k", True).state == "done"


def test_attached_runner(server, db, connect):
    """When a session ends with its connection, its running keys are in doubt at once."""
    conn = connect()
    with server.connect(db) as direct:
        runner = Session(direct, "runner", ttl="120 s", attach=True)
        begin(runner, "k")
        assert state(conn, "k") == "running"
    wait_until(lambda: state(conn, "k") == "in_doubt")


@pytest.mark.parametrize("how", ["crash", "immediate"])
def test_crash_of_the_server(clean, how):
    """An answered finish survives, whatever synchronous_commit says; a running key is in doubt a TTL after the
    recovery, and not before."""
    conn = clean.connect(options="-c synchronous_commit=off")
    ends, lives = Session(conn, "ends", ttl="6 s"), Session(conn, "lives", ttl="60 s")
    done, failed, free = (begin(lives, key).fence for key in ("done", "failed", "free"))
    running, lost = begin(lives, "running").fence, begin(ends, "lost").fence
    with clean.connect(options="-c synchronous_commit=off") as prepared:
        prepared.autocommit = False
        call(prepared, "execution_begin", "prepared", lives.id)
        prepared.execute(f"PREPARE TRANSACTION '{how}'")
        prepared.rollback()
    assert call(conn, "execution_fail", "failed", failed, "error") and call(conn, "execution_fail", "free", free, "error", True)
    assert finish(conn, "done", done, "1")  # since then no commit was waited for
    recovering_at = time.monotonic()
    clean.crash() if how == "crash" else clean.restart("immediate")
    with clean.connect() as conn:
        lives.conn = conn
        rival = Session(conn, "rival", ttl="60 s")
        assert (begin(rival, "done").state, begin(rival, "done").result) == ("done", 1)
        assert not finish(conn, "done", done)
        assert begin(rival, "failed").state == "failed"
        again = begin(rival, "free")
        assert again.first and again.fence > max(done, failed, free, running, lost)
        assert begin(lives, "running").fence == running
        assert begin(rival, "prepared").state == "running"
        wait_until(lambda: begin(rival, "lost").state == "in_doubt", pause=0.02)
        assert time.monotonic() - recovering_at > 6
        assert refused(conn, "execution_finish", "lost", lost) == "LF001"
        assert begin(rival, "running").state == "running" and finish(conn, "running", running)
        conn.execute(f"COMMIT PREPARED '{how}'")
        kept = begin(lives, "prepared")
        assert (kept.first, kept.state) == (False, "running") and finish(conn, "prepared", kept.fence)
        assert lives.close() and rival.close()


def test_dump(clean, tmp_path):
    """A done key stays done after a restore, a running one is in doubt then, and fences go on above."""
    tools = Path(os.environ["PG_BIN"])
    with clean.connect() as conn:
        session = Session(conn, "dumped", ttl="60 s")
        assert finish(conn, "done", begin(session, "done").fence, '{"n": 1.10}')
        fence = begin(session, "running").fence
        subprocess.run([tools / "pg_dump", "-d", clean.dsn(), "-f", tmp_path / "dump.sql"], check=True)
        conn.execute("CREATE DATABASE restored")
        psql = [tools / "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", clean.dsn("restored"), "-f", tmp_path / "dump.sql"]
        subprocess.run(psql, check=True, stdout=subprocess.DEVNULL)
        with clean.connect("restored") as other:
            new = Session(other, "new", ttl="60 s")
            assert begin(new, "done").result == {"n": 1.1}
            assert begin(new, "running").state == state(other, "running") == "in_doubt"
            assert refused(other, "execution_finish", "running", fence) == "LF001"
            assert call(other, "execution_resolve", "running", "retry")
            assert begin(new, "running").fence > fence
        assert begin(session, "running").fence == fence
        assert session.close()
        conn.execute("DROP DATABASE restored WITH (FORCE)")
