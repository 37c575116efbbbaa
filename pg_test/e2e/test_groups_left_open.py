"""Transactions that change a group or its members and stay idle or prepared. Other members join, leave and end as
usual, and no partition goes to a stranger."""

import pytest
from client import call, rows
from conftest import wait_until
from crossing import waits
from members import Member, create, owners, settle

PATIENT = {"options": "-c lock_timeout=20s"}  # a call that must not wait fails, and not only the test


def member(connect, consumer, **kw):
    return Member(connect(**PATIENT), consumer, "1 h", **kw).join()


def two_members(connect):
    """Makes a group whose partitions two members share, and a connection that watches. One member dies with its
    connection."""
    conn = connect()
    create(conn, 6)
    me, other = member(connect, "me"), member(connect, "other", attach=True)
    settle(conn, [me, other])
    return conn, me, other


def of(conn, session):
    """Returns the partitions that a session owns, by the rows."""
    return {partition for partition, owner in enumerate(owners(conn)) if owner == session.id}


class Heir(Member):
    """A session that takes over in a transaction that is left open."""

    def __init__(self, connect, consumer="me"):
        super().__init__(connect(autocommit=False, **PATIENT), consumer, "1 h", takeover=True)

    def prepare(self, watcher):
        self.conn.execute("PREPARE TRANSACTION 'taking over'")
        self.conn.commit()
        self.end = lambda how: watcher.execute(f"{how} PREPARED 'taking over'")

    def end(self, how):
        self.conn.execute(how)

    def at_home(self, connect):
        self.conn = connect(**PATIENT)
        return self


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("way", ["open", "prepared"])
def test_the_others_are_rebalanced_beside_a_takeover(connect, way, end):
    conn, me, other = two_members(connect)
    had = of(conn, me)
    heir = Heir(connect)
    if way == "prepared":
        heir.prepare(conn)
    third = member(connect, "third")
    wait_until(other.give_back, timeout=20)
    wait_until(lambda: len(of(conn, third)) == 1, timeout=20)
    other.conn.close()
    wait_until(lambda: len(of(conn, third)) == 3, timeout=20)
    assert of(conn, me) == had
    heir.end(end)
    session = heir.at_home(connect) if end == "COMMIT" else me
    wait_until(lambda: session.heartbeat().reason == "alive")
    wait_until(lambda: of(conn, session) == had)
    settle(conn, [session, third])
    assert of(conn, session) == had and set(session.assignment()) == had
    assert conn.execute("SELECT consumer FROM eskit_lease.group_members ORDER BY 1").fetchall() == [("me",), ("third",)]


def test_a_takeover_waits_for_no_group(connect):
    conn, me, other = two_members(connect)
    had, altering = of(conn, me), connect(autocommit=False)
    call(altering, "group_alter", "g", None, "2 h")
    heir = Heir(connect)
    assert set(heir.assignment()) == had, "in its own transaction"
    heir.end("COMMIT")
    heir.at_home(connect)
    # The group is still locked. The heir is a member, in the name of its predecessor.
    assert set(heir.assignment()) == had and not heir.revoking
    given, fence = min(heir.owned.items())
    assert call(heir.conn, "group_release", "g", given, fence)
    third = member(connect, "third")
    altering.commit()
    settle(conn, [heir, other, third])
    assert of(conn, heir) <= had


def test_an_heir_leaves_in_the_name_of_its_predecessor(connect):
    conn, me, other = two_members(connect)
    altering, heir = connect(autocommit=False), Heir(connect)
    call(altering, "group_alter", "g", None, "2 h")
    heir.end("COMMIT")
    assert heir.at_home(connect).leave()
    altering.commit()
    settle(conn, [other])
    assert conn.execute("SELECT count(*) FROM eskit_lease._members").fetchone() == (1,)


@pytest.fixture
def committed(connect, no_worker):
    """Commits a prepared take-over. Without a worker the member's row names the predecessor until a rebalance."""
    conn = connect()
    create(conn, 6)
    me, other = member(connect, "me"), member(connect, "other")

    def is_shared():
        for each in (me, other):
            each.give_back()
        return [len(each.assignment()) for each in (me, other)] == [3, 3]

    wait_until(is_shared)
    had, heir = of(conn, me), Heir(connect)
    heir.prepare(conn)
    heir.end("COMMIT")
    named = conn.execute("SELECT count(*) FROM eskit_lease._members WHERE session = %s", (me.id,)).fetchone()
    assert named == (1,) and of(conn, heir) == had
    return conn, heir.at_home(connect), other, had


def test_a_rebalance_makes_the_heir_a_member(connect, committed):
    conn, heir, other, had = committed
    third = member(connect, "third")

    def is_shared():
        for each in (heir, other, third):
            each.give_back()
        return [len(each.assignment()) for each in (heir, other, third)] == [2, 2, 2]

    wait_until(is_shared)
    assert of(conn, heir) < had, "it gave one away, and was given none that it did not have"
    named = conn.execute("SELECT count(*) FROM eskit_lease._members WHERE session = %s", (heir.id,)).fetchone()
    assert named == (1,)


def test_a_group_of_an_heir_is_in_use(committed):
    conn, heir, other, _ = committed
    other.close()
    assert all(call(heir.conn, "group_release", "g", *seat) for seat in heir.assignment().items())
    with pytest.raises(Exception, match='"me" (is a member|owns partition)'):
        call(conn, "group_drop", "g")


def test_an_heir_that_drains_keeps_what_it_has(committed):
    conn, heir, other, had = committed
    assert call(heir.conn, "session_drain", heir.id)
    call(conn, "session_sweep")
    for _ in range(3):
        other.give_back()
        assert {row.partition for row in rows(heir.conn, "group_assignment", "g", heir.id) if row.revoke_in is None} == had
    assert conn.execute("SELECT state FROM eskit_lease.group_members WHERE consumer = 'me'").fetchall() == [("draining",)]


def test_an_heir_that_ends_before_it_is_a_member(committed):
    conn, heir, other, _ = committed
    assert heir.close()
    call(conn, "session_sweep")
    wait_until(lambda: len(other.assignment()) == 6)
    assert conn.execute("SELECT session FROM eskit_lease._members").fetchall() == [(other.id,)]


def test_two_predecessors_are_one_member(connect):
    conn = connect()
    create(conn, 12)
    old, other = [member(connect, "me") for _ in range(2)], member(connect, "other")
    settle(conn, [*old, other])
    had, heir = of(conn, old[0]) | of(conn, old[1]), Heir(connect)
    third = member(connect, "third")
    wait_until(other.give_back)
    heir.end("COMMIT")
    settle(conn, [heir.at_home(connect), other, third])
    assert of(conn, heir) <= had


def test_a_takeover_after_a_takeover(connect):
    """The second take-over begins before the successor of the first has a membership in its own name."""
    conn, me, other = two_members(connect)
    had, altering = of(conn, me), connect(autocommit=False)
    call(altering, "group_alter", "g", None, "2 h")
    for _ in range(2):
        heir = Heir(connect)
        heir.end("COMMIT")
    assert set(heir.at_home(connect).assignment()) == had
    altering.rollback()
    wait_until(lambda: not conn.execute("SELECT FROM eskit_lease._successions").fetchone())
    assert set(heir.assignment()) == had and not heir.revoking


FUNCTION = "CREATE FUNCTION act() RETURNS void LANGUAGE plpgsql AS $body$ BEGIN PERFORM {verb}; END $body$"
PROCEDURE = "CREATE PROCEDURE act_and_go_on() LANGUAGE plpgsql AS $body$ BEGIN PERFORM {verb}; PERFORM {more}; END $body$"
LOOP = """CREATE FUNCTION act() RETURNS void LANGUAGE plpgsql AS $body$
    DECLARE answer text; BEGIN FOR answer IN SELECT {verb} LOOP NULL; END LOOP; END $body$"""
GOES_ON = {
    "DO": ("SELECT 1", "DO $do$ BEGIN PERFORM {verb}; PERFORM {more}; END $do$"),
    "function in DO": (FUNCTION, "DO $do$ BEGIN PERFORM act(); PERFORM {more}; END $do$"),
    "loop in DO": (LOOP, "DO $do$ BEGIN PERFORM act(); PERFORM {more}; END $do$"),
    "CALL": (PROCEDURE, "CALL act_and_go_on()"),
}


@pytest.mark.parametrize("how", GOES_ON)
@pytest.mark.parametrize("verb", ["group_join", "group_leave"])
def test_a_statement_that_goes_on_keeps_nobody_waiting(connect, background, verb, how):
    conn, gate, acting = connect(), connect(), connect()
    create(conn, 6)
    first, leaver, dying = member(connect, "first"), member(connect, "leaver"), member(connect, "dying", attach=True)
    settle(conn, [first, leaver, dying])
    joiner = Member(connect(), "joiner", "1 h")
    who = joiner if verb == "group_join" else leaver
    more, called = "pg_advisory_xact_lock(1)", f"eskit_lease.{verb}('g', '{who.id}')"
    made, statement = (each.format(verb=called, more=more) for each in GOES_ON[how])
    conn.execute(made)
    gate.execute("SELECT pg_advisory_lock(1)")
    goes_on = background(acting.execute, statement)
    wait_until(lambda: waits(conn, acting))
    try:
        dying.conn.close()
        wait_until(lambda: len(of(conn, first)) == 3, timeout=20)
    finally:
        gate.execute("SELECT pg_advisory_unlock(1)")
    goes_on.result()
    settle(conn, [first, leaver, joiner] if verb == "group_join" else [first])


@pytest.mark.parametrize("verb", ["group_join", "group_leave", "group_assignment"])
def test_a_statement_that_goes_on_judges_at_its_commit(connect, no_worker, verb):
    """There is no worker. A member has died, and each of these verbs finds that."""
    conn = connect()
    create(conn, 6)
    first, dying = member(connect, "first"), member(connect, "dying", attach=True)
    leaver = member(connect, "leaver")
    for _ in range(3):
        assert [len(each.assignment()) + each.give_back() for each in (first, dying, leaver)]
    dying.conn.close()
    wait_until(lambda: dying.expired(conn))
    joiner = Member(connect(), "joiner", "1 h")
    who = {"group_join": joiner, "group_leave": leaver, "group_assignment": first}[verb]
    conn.execute(f"DO $do$ BEGIN PERFORM eskit_lease.{verb}('g', '{who.id}'); END $do$")
    assert {owner for owner in owners(conn) if owner != joiner.id} == ({first.id, leaver.id} if verb != "group_leave" else {first.id})


def test_a_function_of_a_user_hears_of_its_partitions(connect, no_worker):
    conn = connect()
    create(conn, 6)
    first, dying = member(connect, "first"), member(connect, "dying", attach=True)
    conn.execute(
        """CREATE FUNCTION mine(session uuid) RETURNS SETOF int LANGUAGE plpgsql AS $body$
           BEGIN RETURN QUERY SELECT partition FROM eskit_lease.group_assignment('g', session); END $body$"""
    )
    for _ in range(2):
        assert [len(each.assignment()) + each.give_back() for each in (first, dying)]
    dying.conn.close()
    wait_until(lambda: dying.expired(conn))
    assert conn.execute("SELECT array_agg(mine) FROM mine(%s)", (first.id,)).fetchone() == ([*range(6)],)


CHANGES = {
    "group_alter": ("changing the group", "g", ("g", None, "2 h")),
    "group_resize": ("changing the group", "g", ("g", 8, True)),
    "group_drop": ("changing the group", "empty", ("empty",)),
    "semaphore_resize": ("changing the semaphore", "s", ("s", 3)),
    "bridge_drop": ("changing the bridge", "b", ("b",)),
    "session_drain": ("changing the session", "me", None),
    "session_close": ("changing the session", "me", None),
}


@pytest.mark.parametrize("way", ["open", "prepared"])
@pytest.mark.parametrize("verb", CHANGES)
def test_the_view_shows_what_is_in_the_way(connect, verb, way):
    conn, changing = connect(), connect(autocommit=False)
    create(conn, 6)
    me = member(connect, "me")
    call(conn, "group_create", "empty", 2)
    call(conn, "semaphore_create", "s", 2)
    call(conn, "bridge_create", "b", 77)
    doing, what, args = CHANGES[verb]
    call(changing, verb, *(args or (me.id,)))
    pid, gid = changing.info.backend_pid, f"{verb} left open"
    if way == "prepared":
        changing.execute(f"PREPARE TRANSACTION '{gid}'")
        changing.commit()
    shown = "SELECT DISTINCT resource, consumer, granted, pid, prepared, since <= now() FROM eskit_lease.blockers WHERE doing = %s"
    named = (None, what) if doing == "changing the session" else (what, None)
    by = (pid, None) if way == "open" else (None, gid)
    wait_until(lambda: conn.execute(shown, (doing,)).fetchall() == [(*named, True, *by, True)], timeout=20)
    conn.execute(f"ROLLBACK PREPARED '{gid}'") if way == "prepared" else changing.rollback()
    wait_until(lambda: not conn.execute(shown, (doing,)).fetchall(), timeout=20)


@pytest.mark.parametrize("way", ["join", "leave", "close"])
def test_what_is_left_open_keeps_no_group_without_a_worker(connect, no_worker, way):
    conn = connect()
    create(conn, 4, "1 s")
    me, other, newcomer, third = (Member(connect(**PATIENT), name, "1 h") for name in ("me", "other", "newcomer", "third"))
    me.join()
    other.join()
    settle(conn, [me, other])
    changing = connect(autocommit=False)
    before = conn.execute("SELECT generation FROM eskit_lease.groups").fetchone()[0]
    match way:
        case "join":
            assert call(changing, "group_join", "g", newcomer.id) == before, "it comes later"
        case "leave":
            call(changing, "group_leave", "g", other.id)
        case "close":
            call(changing, "session_close", other.id)
    changing.execute("PREPARE TRANSACTION 'changing'")
    changing.commit()
    third.join()
    assert me.close()

    def is_served():
        if way == "join":
            other.give_back()
        return third.assignment() and None not in owners(conn)

    wait_until(is_served, timeout=20)
    conn.execute("ROLLBACK PREPARED 'changing'")
    settle(conn, [other, third])
