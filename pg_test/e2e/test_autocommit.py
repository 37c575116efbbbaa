"""What two kinds of clients are told: one whose driver opens a transaction with the first statement, and one that
checks a fence outside of a transaction."""

import psycopg
import pytest
from client import Session, call, rows, stat
from conftest import Server, wait_until


def reasons(conn, session):
    """Returns the reasons that another connection of the session is told: by a heartbeat, a wait, an acquire, and an
    acquire that asks for a place in line."""
    heartbeat = call(conn, "session_heartbeat", session.id)
    wait = call(conn, "session_wait", session.id, session.revision, "10 ms")
    asked = [call(conn, "lease_acquire", "mine", session.id, queue) for queue in (False, True)]
    (many,) = rows(conn, "lease_acquire_many", ["mine"], session.id)
    assert heartbeat.alive and wait.alive and heartbeat.trust_ms > 0
    return {answer.reason for answer in (heartbeat, wait, *asked, many)}


def test_a_session_that_is_not_committed_is_told_so(server, db, connect):
    heartbeats = connect()
    call(heartbeats, "group_create", "g", 4)
    with psycopg.connect(server.dsn(db)) as work:  # as psycopg does it by itself
        session = Session(work, ttl="60 s")
        session.take("r")
        assert session.heartbeat().reason == "alive" and session.acquire("r").reason == "already_held"
        assert reasons(heartbeats, session) == {"uncommitted"}
        with pytest.raises(psycopg.errors.LockNotAvailable, match="not committed yet"):
            call(heartbeats, "group_join", "g", session.id)
        work.commit()
        assert call(heartbeats, "session_heartbeat", session.id).reason == "alive"
        assert call(heartbeats, "lease_acquire", "r", session.id).reason == "already_held"
        assert call(heartbeats, "lease_acquire", "mine", session.id).granted
        session = Session(work, ttl="60 s")
        assert reasons(heartbeats, session) == {"uncommitted"}
        work.rollback()
        assert call(heartbeats, "session_heartbeat", session.id).reason == "unknown_session"


def test_a_wait_is_told_when_it_was_committed_meanwhile(server, db, connect, background):
    with psycopg.connect(server.dsn(db)) as work:
        session, waiter = Session(work, ttl="60 s"), connect()
        told = background(call, waiter, "session_wait", session.id, session.revision, "2 s")
        wait_until(lambda: server.query("SELECT 1 FROM pg_stat_activity WHERE datname = %s AND query LIKE '%%session_wait%%' AND state = 'active' AND pid <> pg_backend_pid()", db))
        work.commit()
        assert told.result().reason == "timeout"


@pytest.mark.parametrize("restart", [None, "fast", "immediate"])
@pytest.mark.parametrize("commit", [True, False])
def test_a_session_whose_opening_is_prepared(commit, restart):
    server = Server("e2e-autocommit", "max_prepared_transactions = 2")
    server.query("CREATE EXTENSION eskit_lease")
    with server.connect() as work:
        work.execute("BEGIN")
        session = Session(work, ttl="60 s")
        session.take("r")
        work.execute("PREPARE TRANSACTION 'opening'")
    if restart:
        server.restart(restart)
    with server.connect() as other:
        session.revision = call(other, "session_heartbeat", session.id).revision  # a restart begins another
        assert reasons(other, session) == {"uncommitted"}
        with pytest.raises(psycopg.errors.LockNotAvailable, match="not committed yet"):
            rows(other, "execution_begin", "k", session.id)
        other.execute(f"{'COMMIT' if commit else 'ROLLBACK'} PREPARED 'opening'")
        if commit:
            assert reasons(other, session) <= {"alive", "timeout", "changed", "granted", "already_held"}
            assert call(other, "session_close", session.id)
            assert not call(other, "session_heartbeat", session.id).alive
        else:
            assert "uncommitted" not in call(other, "session_heartbeat", session.id).reason
    server.stop()


@pytest.mark.parametrize("worker", [True, False])
@pytest.mark.parametrize("way", ["prepared", "terminated"])
def test_a_session_whose_opening_is_rolled_back_is_unknown(connect, background, request, way, worker):
    if not worker:
        request.getfixturevalue("no_worker")
    conn, work, waiting = connect(), connect(autocommit=False), connect()
    call(conn, "group_create", "g", 1), call(conn, "queue_create", "q")
    session = Session(work, ttl="1 h")
    session.take("r")
    if way == "prepared":
        work.execute("PREPARE TRANSACTION 'opening'")
        work.commit()
    assert call(conn, "session_heartbeat", session.id).reason == "uncommitted"
    wait = background(call, waiting, "session_wait", session.id, session.revision, "1 s")
    wait_until(lambda: stat(conn, "calls_waiting"))
    if way == "prepared":
        conn.execute("ROLLBACK PREPARED 'opening'")
    else:
        conn.execute("SELECT pg_terminate_backend(%s, 60000)", (work.info.backend_pid,))
    assert wait.result().reason == "unknown_session"
    told = [call(conn, "session_heartbeat", session.id), call(conn, "session_wait", session.id, session.revision, "0")]
    told += rows(conn, "session_wait_many", [session.id], [session.revision], "0")
    assert not any(answer.alive for answer in told)
    told += [call(conn, "lease_acquire", "r", session.id, queue) for queue in (False, True)]
    told += rows(conn, "lease_acquire_many", ["r"], session.id)
    assert {answer.reason for answer in told} == {"unknown_session"}
    for verb in (("group_join", "g", session.id), ("item_claim", "q", session.id), ("execution_begin", "k", session.id)):
        with pytest.raises(psycopg.Error) as ended:
            rows(conn, *verb)
        assert ended.value.sqlstate == "LF003", verb
    assert not call(conn, "session_close", session.id) and not call(conn, "lease_cancel", "r", session.id)
    assert Session(conn).acquire("r").granted


def warnings(conn, work):
    """Returns the SQLSTATEs of the warnings that come with some work on a connection."""
    heard = []
    conn.add_notice_handler(lambda told: heard.append(told.sqlstate))
    work(conn)
    return heard


def overdue(conn):
    """Returns whether the transaction of a connection is open for longer than the heartbeats of a TTL of 6 s are apart."""
    return conn.execute("SELECT clock_timestamp() - now() > '2.1 s'").fetchone()[0]


@pytest.mark.parametrize("opening", ["open", "committed"])
def test_a_transaction_that_is_left_open_is_told_so(server, db, connect, opening):
    """The client has no other connection that could be told, and all that it does would be lost with this one."""
    with psycopg.connect(server.dsn(db)) as work:
        session = Session(work, ttl="6 s")
        if opening == "committed":
            work.commit()
        session.take("r")
        assert warnings(work, lambda _: session.heartbeat().reason == "alive" or pytest.fail("told too early")) == []
        wait_until(lambda: overdue(work))
        asking = lambda _: [session.acquire("r"), session.acquire("r", True)]  # noqa: E731
        assert warnings(work, asking) == ["25001"], "once in a transaction"
        assert session.heartbeat().reason == "uncommitted"
        assert call(work, "session_wait", session.id, session.revision, "0").reason in ("changed", "uncommitted")
        work.commit()
        assert warnings(work, asking) == [] and session.heartbeat().reason == "alive"
        assert Session(connect(), ttl="6 s").acquire("r").reason == "held", "the commit is what was missing"


def test_a_wait_in_a_transaction_that_has_asked_is_told_so(server, db, connect):
    Session(connect(), ttl="1 min").take("r")
    with psycopg.connect(server.dsn(db)) as work:
        session = Session(work, ttl="6 s")
        work.commit()
        revision = session.acquire("r", True).revision
        told = []
        assert warnings(work, lambda _: told.append(call(work, "session_wait", session.id, revision, "1 min"))) == ["25001"]
        assert told[0].reason == "uncommitted" and told[0].alive


def test_a_heartbeat_within_long_work_is_not_warned(connect):
    """Here the client knows what it does: its lease was committed before."""
    work = connect()
    session = Session(work, ttl="6 s")
    fence = session.take("r")
    work.execute("CREATE TABLE done (n int)")
    with work.transaction():
        call(work, "fence_check", "r", fence)
        work.execute("INSERT INTO done VALUES (1)")
        wait_until(lambda: overdue(work))
        assert warnings(work, lambda _: session.heartbeat().reason == "alive" or pytest.fail("told in vain")) == []


@pytest.mark.parametrize("prepared", [True, False])
def test_a_pipeline_that_checks_and_writes_is_not_warned(connect, prepared):
    conn = connect()
    session = Session(conn, ttl="60 s")
    fence = session.take("r")
    conn.execute("CREATE TABLE written (n int)")

    def checks_and_then(*statements):
        def work(conn):
            with conn.pipeline():
                conn.execute("SELECT eskit_lease.fence_check('r', %s)", (fence,), prepare=prepared)
                for statement in statements:
                    conn.execute(statement, (1,), prepare=prepared)

        return work

    assert warnings(conn, checks_and_then("INSERT INTO written VALUES (%s)")) == []
    assert warnings(conn, checks_and_then("UPDATE written SET n = 2 WHERE n > %s")) == [], "nothing to write"
    assert warnings(conn, checks_and_then("SELECT %s", "INSERT INTO written VALUES (%s)")) == []
    with conn.transaction(), conn.pipeline():
        assert warnings(conn, lambda conn: session.check("r")) == []
    assert warnings(conn, checks_and_then()) == ["25P01"], "a pipeline of one statement"
    assert warnings(conn, checks_and_then()) == [], "once in a connection"


@pytest.mark.parametrize("effect", ["pg_notify('heard', 'work')", "pg_try_advisory_lock(1)", "nextval('numbers')", "writes_elsewhere()"])
def test_a_statement_with_another_effect_is_not_warned(connect, effect):
    """These effects need no transaction id yet when the check is judged."""
    setup = connect()
    setup.execute("CREATE SEQUENCE numbers; SELECT nextval('numbers')")
    setup.execute("CREATE FUNCTION writes_elsewhere() RETURNS void LANGUAGE sql AS ''")
    fence = Session(setup, ttl="60 s").take("r")
    for statement in ("SELECT {check}, {effect}", "SELECT {effect} FROM {check}", "SELECT {check} FROM {effect}", "SELECT * FROM {check}, {effect}"):
        conn = connect()
        sql = statement.format(check=f"eskit_lease.fence_check('r', {fence})", effect=effect)
        assert warnings(conn, lambda conn: conn.execute(sql)) == [], sql  # noqa: B023
    conn = connect()
    check = f"eskit_lease.fence_check('r', {fence})"
    assert warnings(conn, lambda conn: conn.execute(f"SELECT {check}, {check}, now()")) == ["25P01"], "no effect"


@pytest.mark.parametrize("autocommit", [True, False])
def test_a_check_alone_is_warned_whatever_the_protocol(server, connect, autocommit):
    for how in (dict(binary=True), dict(prepare=True), {}):
        conn = connect(autocommit=autocommit)
        session = Session(conn, ttl="60 s")
        fence = session.take("r")
        conn.commit()
        check = lambda conn: conn.execute("SELECT eskit_lease.fence_check('r', %s)", (fence,), **how)  # noqa: B023, E731
        assert warnings(conn, check) == (["25P01"] if autocommit else [])
        conn.commit()
        session.close()
        conn.commit()
    plain = connect()
    session = Session(plain, ttl="60 s")
    fence = session.take("r")
    assert warnings(plain, lambda conn: conn.execute(f"SELECT eskit_lease.fence_check('r', {fence})")) == ["25P01"]  # simple protocol
