"""A primary whose synchronous standby does not acknowledge stops vouching for its sessions, in time, and begins again
when the standby is back."""

import os
import signal
import time

import pytest
from client import Session, call, stat
from conftest import Server, standby_of, wait_until
from isolation import Pair
from links import Link

TTL = 2  # seconds


@pytest.fixture(scope="module")
def made():
    primary = Server(
        "e2e-confirm", "synchronous_standby_names = '*'", "hot_standby = on", "eskit_lease.confirm_interval = '50 ms'",
    )  # fmt: skip
    primary.query("SET synchronous_commit = local; CREATE EXTENSION eskit_lease")
    standby = standby_of(primary, "e2e-confirming")
    link = Link(primary.port)
    standby.set(primary_conninfo=link.dsn(), wal_retrieve_retry_interval="100 ms")
    yield Pair(primary, standby, link)
    link.end()
    for server in (standby, primary):
        server.stop("immediate")


@pytest.fixture
def pair(made):
    """Gives a healthy pair: the standby acknowledges."""
    made.heal()
    made.primary.set(eskit_lease__confirm_interval=None)
    wait_until(lambda: made.primary.query("SELECT value < 1000 FROM eskit_lease.stats() WHERE name = 'confirmed_ms_ago'") == [(True,)])
    yield made
    made.heal()


@pytest.fixture
def conn(pair):
    with pair.primary.connect() as conn:
        yield conn


def trusted(session):
    """Returns whether a heartbeat vouches for the session."""
    answer = session.heartbeat()
    assert answer.alive and answer.expires_at is not None, answer
    assert (answer.reason == "alive") == (answer.trust_ms > 0) and (answer.reason == "unconfirmed") == (answer.trust_ms == 0), answer
    return answer.trust_ms > 0


def beats(session, seconds):
    """Heartbeats for a while, and returns whether any answer vouched for the session."""
    until = time.monotonic() + seconds
    found = False
    while time.monotonic() < until:
        found |= trusted(session)
        time.sleep(0.01)
    return found


@pytest.mark.parametrize("isolate", [Pair.by_cutting, Pair.by_stopping, Pair.by_refusing], ids=lambda how: how.__name__)
def test_isolated(pair, conn, isolate):
    """Nothing is trusted beyond a TTL after the last acknowledgement of the standby."""
    session = Session(conn, ttl=f"{TTL} s")
    assert session.trust_ms <= TTL * 1000
    fence = session.take("r")
    wait_until(lambda: trusted(session))
    assert session.acquire("r").reason == "already_held" and session.trust_ms > 0
    assert session.renew("r").reason == "held"
    isolate(pair)
    isolated_at = time.monotonic()
    while trusted(session):
        assert session.deadline <= isolated_at + TTL
    assert not beats(session, 0.2)
    told = session.wait("10 ms")
    assert (told.trust_ms, told.reason) == (0, "changed")  # the session has been granted something since its opening
    renewed, waited = session.renew("r"), session.wait("10 ms")
    assert (renewed.held, renewed.trust_ms, renewed.reason) == (True, 0, "unconfirmed")
    assert (waited.alive, waited.trust_ms, waited.reason) == (True, 0, "unconfirmed")
    again = session.acquire("r")
    assert (again.granted, again.fence, again.trust_ms, again.reason) == (True, fence, 0, "already_held")
    # Deadlines are as usual.
    stands = "SELECT state, trust_ms, expires_at > clock_timestamp() FROM eskit_lease.sessions WHERE session = %s"
    assert conn.execute(stands, (session.id,)).fetchall() == [("alive", 0, True)]
    pair.heal()
    wait_until(lambda: trusted(session))
    assert session.renew("r").reason == "held"
    assert session.close()


def test_counts_from_its_start(pair, conn):
    """A confirmation that took long proves that this was the primary when it began, not when it was acknowledged."""
    session = Session(conn, ttl="30 s")
    pair.primary.set(eskit_lease__confirm_interval="0")
    wait_until(lambda: not pair.confirmers())
    assert trusted(session) and session.trust_ms > 29_000

    def last_began():
        return time.monotonic() - stat(conn, "confirmed_ms_ago") / 1000

    before = last_began()
    time.sleep(0.2)
    pair.by_stopping()
    pair.primary.set(eskit_lease__confirm_interval="10 min")
    wait_until(pair.waiting)
    began_by = time.monotonic()
    time.sleep(1)
    pair.heal()
    wait_until(lambda: last_began() > before + 0.1)
    assert last_began() < began_by + 0.1
    assert trusted(session) and session.deadline <= began_by + 30
    assert session.close()


def test_cancelled_wait(pair, conn):
    """If the confirmer's wait is cancelled or terminated, no standby has acknowledged anything."""
    session = Session(conn, ttl=f"{TTL} s")
    wait_until(lambda: trusted(session))
    pair.by_stopping()
    wait_until(lambda: not trusted(session))

    def meanwhile(condition):
        """Keeps the session alive until the condition holds."""
        wait_until(lambda: session.heartbeat().alive and condition())

    for end in ("pg_cancel_backend", "pg_terminate_backend") * 2:
        meanwhile(pair.waiting)
        (pid,) = pair.confirmers()
        conn.execute(f"SELECT {end}(%s)", (pid,))
        if end == "pg_terminate_backend":
            meanwhile(lambda: pair.confirmers() not in ([], [pid]))
        assert not beats(session, 0.2)
    # The launcher's end also ends the confirmer.
    (pid,) = pair.confirmers()
    conn.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'eskit_lease launcher'")
    meanwhile(lambda: pair.confirmers() not in ([], [pid]) and pair.waiting())
    assert not beats(session, 0.2)
    pair.heal()
    wait_until(lambda: trusted(session))
    assert session.close()


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_restart(pair, mode):
    """An isolated primary that is restarted has no confirmation, and gets none in the time in which commits do not wait
    yet."""
    with pair.primary.connect() as conn:
        session = Session(conn, ttl="30 s")
        wait_until(lambda: trusted(session))
        pair.by_refusing()
        assert trusted(session)
    pair.primary.restart(mode)
    with pair.primary.connect() as conn:
        session.conn = conn
        until = time.monotonic() + 2
        while time.monotonic() < until or not pair.waiting():
            assert not trusted(session) and stat(conn, "confirmed_ms_ago") is None
        pair.heal()
        wait_until(lambda: trusted(session))
        assert session.close()


def test_switched(pair, conn):
    """The setting changes while the server runs, even while the confirmer waits."""
    session = Session(conn, ttl=f"{TTL} s")
    pair.by_stopping()
    wait_until(lambda: not trusted(session))
    for _ in range(2):
        pair.primary.set(eskit_lease__confirm_interval="0")
        wait_until(lambda: trusted(session) and session.trust_ms > 1000 * TTL - 500)
        wait_until(lambda: not pair.confirmers())
        pair.primary.set(eskit_lease__confirm_interval=None)
        wait_until(lambda: not trusted(session))
        wait_until(pair.waiting)
    # If the operator empties synchronous_standby_names, everything counts as confirmed.
    pair.primary.set(synchronous_standby_names="")
    wait_until(lambda: trusted(session))
    pair.primary.set(synchronous_standby_names=None)
    wait_until(lambda: not trusted(session))
    pair.heal()
    wait_until(lambda: trusted(session))
    # Confirmation does not need the worker.
    pair.primary.set(eskit_lease__worker="off")
    assert beats(session, 0.2)
    pair.primary.set(eskit_lease__worker=None)
    assert session.close()


def test_nobody_to_ask(pair):
    """Without standbys to ask, a new grant is vouched for at once, even if the next confirmation is far off."""
    pair.primary.set(synchronous_standby_names="", eskit_lease__confirm_interval="1 h")
    try:
        with pair.primary.connect() as conn:
            wait_until(lambda: conn.execute("SHOW eskit_lease.confirm_interval").fetchone() == ("1h",))
            session = Session(conn, ttl="60 s")
            assert trusted(session)
            session.take("r")
            assert trusted(session) and session.renew("r").trust_ms > 0
            assert session.close()
    finally:
        pair.primary.set(synchronous_standby_names=None)


def test_log(pair):
    silent, back = "have acknowledged no confirmation for", "acknowledge confirmations again"
    pair.primary.set(eskit_lease__confirm_interval="0")  # ends the confirmer, so that it logs nothing about former tests
    wait_until(lambda: not pair.confirmers())
    pair.primary.set(eskit_lease__confirm_interval=None)
    wait_until(pair.confirmers)
    before = len(pair.primary.logged(silent)), len(pair.primary.logged(back))
    pair.by_stopping()
    wait_until(lambda: len(pair.primary.logged(silent)) > before[0])
    time.sleep(1.2)  # more than the launcher sleeps
    assert len(pair.primary.logged(back)) == before[1]
    pair.heal()
    wait_until(lambda: len(pair.primary.logged(back)) > before[1])
    assert (len(pair.primary.logged(silent)), len(pair.primary.logged(back))) == (before[0] + 1, before[1] + 1)


def test_databases(pair):
    """The confirmer is not in the way of commands that create, rename and drop databases."""
    wait_until(pair.confirmers)
    with pair.primary.connect() as conn:
        for _ in range(3):
            conn.execute("CREATE DATABASE of_ours")
            conn.execute("CREATE DATABASE copy TEMPLATE of_ours")
            conn.execute("ALTER DATABASE copy RENAME TO renamed")
            conn.execute("DROP DATABASE renamed")
            conn.execute("DROP DATABASE of_ours")
        pair.by_stopping()
        wait_until(pair.waiting)
        conn.execute("SET synchronous_commit = local")
        conn.execute("CREATE DATABASE of_ours TEMPLATE template1")
        conn.execute("DROP DATABASE of_ours")


def test_unreplicated_grants(pair, conn, background):
    """A grant that the standby may not have received is vouched for only by a later confirmation."""
    pair.primary.set(eskit_lease__confirm_interval="10 min")
    settled, waiting, hasty = (Session(conn, name, ttl="1 min") for name in ("settled", "waiting", "hasty"))
    settled.take("settled")
    assert settled.trust_ms == 0 and all(map(trusted, (settled, waiting, hasty)))
    pair.by_stopping()
    with pair.primary.connect() as local:
        local.execute("SET synchronous_commit = local")
        hasty.conn = local
        hasty.take("hasty")
        assert hasty.trust_ms == 0 and not trusted(hasty)
        with pair.primary.connect() as cancelled:
            waiting.conn = cancelled
            notices = []
            cancelled.add_notice_handler(lambda notice: notices.append(notice.message_primary))
            pid = cancelled.info.backend_pid
            took = background(waiting.take, "waiting")
            wait_until(lambda: conn.execute("SELECT wait_event FROM pg_stat_activity WHERE pid = %s", (pid,)).fetchone() == ("SyncRep",))
            conn.execute("SELECT pg_cancel_backend(%s)", (pid,))
            took.result()
            assert "canceling wait for synchronous replication due to user request" in notices
            assert waiting.trust_ms == 0 and not trusted(waiting) and waiting.renew("waiting").reason == "unconfirmed"
            with pair.primary.connect() as other:
                asked = call(other, "lease_acquire", "waiting", waiting.id)
                assert (asked.granted, asked.trust_ms, asked.reason) == (True, 0, "already_held")
            assert trusted(settled) and settled.renew("settled").reason == "held"
            pair.heal()
            assert not trusted(waiting)
            pair.primary.set(eskit_lease__confirm_interval=None)
            wait_until(lambda: trusted(waiting) and trusted(hasty))
            for session in (settled, waiting, hasty):
                assert session.close()


def test_prepared_grants(pair, conn):
    """The commit of a prepared transaction calls no hook. Until the commit is noticed, the transaction's sessions are
    not vouched for."""
    session = Session(conn, ttl="1 min")
    wait_until(lambda: trusted(session))
    conn.execute("BEGIN")
    session.take("prepared")
    conn.execute("PREPARE TRANSACTION 'grants'")
    assert not beats(session, 0.3)
    conn.execute("COMMIT PREPARED 'grants'")
    wait_until(lambda: trusted(session))
    assert session.holds("prepared") and session.close()


def test_several_prepared_grants(pair, conn):
    """The end of one prepared transaction confirms nothing of another that is still open."""
    session = Session(conn, ttl="1 min")
    for name in ("first", "second"):
        conn.execute("BEGIN")
        session.take(name)
        conn.execute(f"PREPARE TRANSACTION '{name}'")
    revision = session.heartbeat().revision
    conn.execute("COMMIT PREPARED 'first'")
    wait_until(lambda: session.heartbeat().revision > revision)  # the commit is noticed
    assert not beats(session, 0.3)
    pair.by_stopping()
    conn.execute("SET synchronous_commit = local")
    conn.execute("COMMIT PREPARED 'second'")
    assert session.holds("second") and session.renew("second").reason == "unconfirmed"
    assert not beats(session, 2)
    pair.heal()
    wait_until(lambda: trusted(session))
    assert session.renew("second").reason == "held" and session.close()


def test_prepared_grants_over_a_restart(pair):
    """The primary also watches prepared transactions from before its restart."""
    with pair.primary.connect() as conn:
        session = Session(conn, ttl="1 min")
        conn.execute("BEGIN")
        session.take("over a restart")
        conn.execute("PREPARE TRANSACTION 'over a restart'")
    pair.primary.restart()
    with pair.primary.connect() as conn:
        other = Session(conn, ttl="1 min")
        wait_until(lambda: trusted(other))
        session.conn = conn
        assert not beats(session, 0.3)
        pair.by_stopping()
        conn.execute("SET synchronous_commit = local")
        conn.execute("COMMIT PREPARED 'over a restart'")
        assert session.holds("over a restart") and session.renew("over a restart").reason == "unconfirmed"
        assert not beats(session, 2)
        pair.heal()
        wait_until(lambda: trusted(session))
        assert session.close() and other.close()


def test_prepared_when_its_slot_is_another_s(pair, conn):
    """A session that died before its opening was prepared does not affect the session that now has its slot."""
    with pair.primary.connect() as opening:
        opening.execute("BEGIN")
        Session(opening, "gone", ttl="1 s")
        time.sleep(4)
        others = [Session(conn, f"other {i}", ttl="1 min") for i in range(5)]
        opening.execute("PREPARE TRANSACTION 'late'")
        try:
            wait_until(lambda: all(map(trusted, others)), timeout=5)
        finally:
            opening.execute("ROLLBACK PREPARED 'late'")
        assert all(other.close() for other in others)


def test_granted_while_off(pair, conn):
    """A grant made while confirmation was off is not confirmed just because the setting is on again."""
    session = Session(conn, ttl="1 min")
    wait_until(lambda: trusted(session))
    pair.primary.set(eskit_lease__confirm_interval="0")
    wait_until(lambda: not pair.confirmers())
    pair.by_stopping()
    with pair.primary.connect() as local:
        local.execute("SET synchronous_commit = local")
        session.conn = local
        session.take("while off")
        assert trusted(session)
        pair.primary.set(eskit_lease__confirm_interval=None)
        wait_until(pair.waiting)
        assert not beats(session, 0.3) and session.renew("while off").reason == "unconfirmed"
        pair.heal()
        wait_until(lambda: trusted(session))
        assert session.close()


def test_views_in_the_granting_transaction(pair, conn):
    """In the granting transaction the views vouch for no more than the calls' answers do."""
    session = Session(conn, ttl="1 min")
    shown = "SELECT trust_ms > 0 FROM eskit_lease.leases WHERE resource = 'shown'"
    with conn.transaction():
        session.take("shown")
        assert session.trust_ms == 0 and not trusted(session)
        assert conn.execute(shown).fetchone() == (False,)
    wait_until(lambda: conn.execute(shown).fetchone() == (True,))
    assert session.close()


def test_switched_off_without_the_launcher(pair):
    """The confirmer ends without the launcher, and writes little WAL meanwhile."""
    (launcher,) = pair.primary.workers("launcher")
    os.kill(launcher, signal.SIGSTOP)
    try:
        before = pair.primary.query("SELECT pg_current_wal_insert_lsn()")[0][0]
        pair.primary.set(eskit_lease__confirm_interval="0")
        wait_until(lambda: not pair.confirmers(), timeout=5)
        written = pair.primary.query("SELECT pg_current_wal_insert_lsn() - %s::pg_lsn", before)[0][0]
        assert written < 10_000
    finally:
        os.kill(launcher, signal.SIGCONT)


def test_switched_on_during_a_call(pair, conn, background):
    """One statement, such as a procedure, may make calls for days and sees no reload. Its answers vouch for no more
    than those of other statements do."""
    session = Session(conn, ttl="1 min")
    pair.primary.set(eskit_lease__confirm_interval="0")
    wait_until(lambda: not pair.confirmers())
    pair.by_stopping()
    isolated_at = time.monotonic()
    looped = "SELECT h.trust_ms FROM (SELECT pg_sleep(3)) AS s, eskit_lease.session_heartbeat(%s) AS h"
    with pair.primary.connect() as calling:
        answer, asked_at = background(lambda: calling.execute(looped, (session.id,)).fetchone()), time.monotonic()
        pair.primary.set(eskit_lease__confirm_interval=None)
        wait_until(pair.waiting)
        (trust_ms,) = answer.result()
        assert asked_at + trust_ms / 1000 < isolated_at + 60
    pair.heal()
    wait_until(lambda: trusted(session))
    assert session.close()


def test_no_room(pair):
    """Without a free slot for the confirmer nothing is confirmed, and the log says so once; answers are right."""
    pair.primary.query("ALTER SYSTEM SET max_worker_processes = 2")
    try:
        pair.primary.restart()
        with pair.primary.connect() as conn:
            conn.execute("SET synchronous_commit = local")
            session = Session(conn, ttl="10 s")
            wait_until(lambda: pair.primary.logged("no free background worker slot for the confirmer"))
            assert not beats(session, 0.3)
            # Without a standby to ask, no confirmer is needed.
            pair.primary.set(synchronous_standby_names="")
            wait_until(lambda: trusted(session))
            pair.primary.set(synchronous_standby_names=None)
            wait_until(lambda: not trusted(session), 30)
    finally:
        pair.primary.set(synchronous_standby_names=None)
        pair.primary.query("ALTER SYSTEM RESET max_worker_processes")
        pair.primary.restart()
