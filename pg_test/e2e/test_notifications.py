"""Notifications: hints on the channel eskit_lease, which the worker sends for committed changes only."""

import json
import time

import pytest
from client import Session, call, stat
from conftest import once, wait_until


@pytest.fixture
def heard(connect):
    """Gives heard(resource), which waits for the next event about the resource; heard.so_far has all events."""
    conn = connect()
    conn.execute("LISTEN eskit_lease")
    events = []

    def collect(timeout):
        for note in conn.notifies(timeout=timeout, stop_after=1):
            assert note.channel == "eskit_lease"
            events.append(json.loads(note.payload))

    def heard(resource, event):
        def found():
            collect(0.2)
            return [e for e in events if (e["resource"], e["event"]) == (resource, event)]

        return wait_until(found)[-1]

    heard.so_far = events
    return heard


def quiet(heard, conn, resource):
    """Returns when the events of all earlier commits have been sent: the worker sends them in passes, one after
    another."""
    mark = Session(conn, "mark")
    mark.take("mark")
    heard("mark", "granted")
    mark.release("mark")
    heard("mark", "released")
    heard.so_far[:] = [event for event in heard.so_far if event["resource"] != "mark"]
    return [event for event in heard.so_far if event["resource"] == resource]


def test_grant_hand_over_and_release_are_told(connect, heard):
    leader, follower = Session(connect(), "leader"), Session(connect(), "follower")
    leader.take("r")
    event = heard("r", "granted")
    assert event["consumer"] == "leader"
    assert event["slot"] == 0
    assert event["fence"] == str(leader.fences["r"])
    assert isinstance(event["revision"], str) and int(event["revision"]) >= leader.revision
    heard.so_far.clear()

    follower.queue("r")
    leader.release("r")
    event = heard("r", "granted")
    follower.wait_for("r")
    assert (event["consumer"], event["fence"]) == ("follower", str(follower.fences["r"]))
    heard.so_far.clear()

    follower.release("r")
    event = heard("r", "released")
    assert event["fence"] == str(follower.fences["r"])
    assert "consumer" not in event


@pytest.mark.parametrize(
    ("database", "client", "name"),
    [
        ("UTF8", "UTF8", "Köln 注文 😀"),
        ("UTF8", "LATIN1", "Köln 注文 😀"),  # PostgreSQL ends a connection whose encoding cannot represent a notification
        ("LATIN1", "LATIN1", "für Köln"),
        ("LATIN1", "UTF8", "für Köln"),
        ("EUC_JP", "UTF8", "注文"),
        ("SQL_ASCII", "UTF8", "注文"),
    ],
)
def test_names_in_any_encoding(server, database, client, name):
    server.query(f"CREATE DATABASE encoded TEMPLATE template0 ENCODING '{database}' LC_COLLATE 'C' LC_CTYPE 'C'")
    try:
        with server.connect("encoded") as conn, server.connect("encoded", client_encoding=client) as listener:
            conn.execute("CREATE EXTENSION eskit_lease")
            listener.execute("LISTEN eskit_lease")
            if database != "SQL_ASCII":
                conn.execute("SET client_encoding = 'UTF8'")
            Session(conn, name).take(name)
            (note,) = listener.notifies(timeout=20, stop_after=1)
            event = json.loads(note.payload)
            assert (event["resource"], event["consumer"]) == (name, name)
    finally:
        server.query("DROP DATABASE encoded WITH (FORCE)")


def test_expiry_hand_over_and_close_are_told(connect, heard):
    leader, follower = Session(connect(), "leader", ttl="1 s"), Session(connect(), "follower")
    leader.take("r")
    heard("r", "granted")
    follower.queue("r")
    wait_until(lambda: heard("r", "granted")["consumer"] == "follower")
    follower.close()
    heard("r", "released")


def test_what_was_rolled_back_is_not_told(connect, heard):
    conn, other = connect(autocommit=False), connect()
    session = Session(conn, "session")
    conn.commit()
    session.take("taken")
    conn.rollback()
    session.take("kept")
    with conn.transaction(force_rollback=True):
        session.take("to savepoint")
    conn.commit()
    heard("kept", "granted")
    session.release("kept")
    conn.rollback()
    call(other, "session_heartbeat", session.id)
    assert quiet(heard, other, "taken") == []
    assert quiet(heard, other, "to savepoint") == []
    assert [event["event"] for event in quiet(heard, other, "kept")] == ["granted"]


def test_revision_does_not_move_for_what_was_rolled_back(connect):
    conn, other = connect(autocommit=False), connect()
    session = Session(conn, "session")
    conn.commit()
    before = call(other, "session_heartbeat", session.id).revision
    session.take("r")
    conn.rollback()
    assert call(other, "session_heartbeat", session.id).revision == before
    session.take("r")
    conn.commit()
    assert call(other, "session_heartbeat", session.id).revision > before


def test_uuid_of_a_session_is_not_told(connect, heard):
    session = Session(connect(), "secretive")
    session.take("r")
    assert str(session.id) not in json.dumps(heard("r", "granted"))


@pytest.fixture
def own(server):
    """A database whose settings may be changed."""
    server.query("CREATE DATABASE own_notify")
    server.query("CREATE EXTENSION eskit_lease", dbname="own_notify")
    yield "own_notify"
    server.query("DROP DATABASE own_notify WITH (FORCE)")


def transactions_of_worker(server, dbname):
    """Returns what a round of grants and releases has cost: the notifications sent, and the transaction ids taken
    beyond its own two."""
    with server.connect(dbname) as conn:
        session, next_id = Session(conn), "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
        wait_until(lambda: stat(conn, "resources_dirty") == 0)
        sent, before = stat(conn, "notifications"), conn.execute(next_id).fetchone()[0]
        for _ in range(5):
            session.take("r")
            session.release("r")
            wait_until(lambda: stat(conn, "resources_dirty") == 0)
        wait_until(lambda: not server.workers(dbname=dbname))
        return stat(conn, "notifications") - sent, conn.execute(next_id).fetchone()[0] - before - 10


@once
@pytest.mark.parametrize("setting", ["on", "off", "auto"])
def test_what_is_sent_depends_on_the_setting(server, own, setting):
    """With `auto`, no message is sent and no transaction id is taken, except while a listener has asked for
    messages."""
    server.query(f"ALTER DATABASE {own} SET eskit_lease.notify = {setting}")
    sent, ids = transactions_of_worker(server, own)
    assert (sent > 0, ids > 0) == (setting == "on",) * 2, (sent, ids)
    with server.connect(own) as listener:
        listener.execute("LISTEN eskit_lease")
        call(listener, "notify_me", "1 min")
        sent, ids = transactions_of_worker(server, own)
        assert (sent > 0, ids > 0) == (setting != "off",) * 2, (sent, ids)
        heard = [json.loads(note.payload)["resource"] for note in listener.notifies(timeout=0.5)]
        assert ("r" in heard) == (setting != "off")


@once
def test_an_ask_ends(server, own):
    server.query(f"ALTER DATABASE {own} SET eskit_lease.notify = auto")
    with server.connect(own) as conn:
        call(conn, "notify_me", "100 ms")
        call(conn, "notify_me", "0")  # the longest counts
        time.sleep(0.2)
        assert transactions_of_worker(server, own) == (0, 0)
