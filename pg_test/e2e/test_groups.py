"""Groups under faults: whatever processes stop or die and transactions cross, every partition has one owner, and in the
end the right one."""

import itertools
import json
import random
import subprocess
import sys
import threading
import time

import psycopg
import pytest
from client import best_of, call, rows, stat
from conftest import Server, wait_until
from members import JOURNAL, PARTITIONS, Member, check_journal, create, owners, settle, settled, shares, write


# ---- without the worker ----


def test_without_worker_a_dead_members_partitions_move_when_somebody_asks(connect, no_worker):
    conn = connect()
    create(conn, 8)
    dying, living = Member(conn, "dying", ttl="1 s").join(), Member(conn, "living").join()
    dying.give_back()
    assert (len(dying.owned), len(living.assignment())) == (8, 4)
    fences = {p: fence for p, fence in dying.assignment().items()}
    wait_until(lambda: dying.expired(conn))
    after = living.assignment()
    assert len(after) == 8 and not living.revoking
    assert all(after[p] > fence for p, fence in fences.items())
    with pytest.raises(psycopg.Error) as stale:
        call(conn, "cursor_commit", "g", *next((p, 1, fence) for p, fence in fences.items()))
    assert stale.value.sqlstate == "LF001"


def test_without_worker_every_verb_of_a_group_answers(connect, no_worker):
    conn = connect()
    create(conn, 4)
    a, b = Member(conn, "a").join(), Member(conn, "b").join()
    assert len(a.assignment()) == 4 and len(a.revoking) == 2
    assert a.give_back() == 2
    assert len(b.assignment()) == 2
    assert call(conn, "cursor_commit", "g", *next((p, 10, f) for p, f in b.owned.items()))
    assert call(conn, "session_drain", a.id)
    assert len(b.assignment()) == 2, "what drains keeps what it has"
    assert len(a.assignment()) == 2 and a.revoking == a.owned, "to be given back in its own time"
    assert a.give_back() == 2
    assert len(b.assignment()) == 4
    c = Member(conn, "c").join()
    assert b.give_back() == 2 and len(c.assignment()) == 2
    assert c.leave() and len(b.assignment()) == 4
    assert b.close() and shares(conn) == [4]  # no partition has an owner
    d = Member(conn, "d").join()
    assert len(d.assignment()) == 4


def test_without_worker_an_overdue_partition_moves_when_somebody_asks(connect, no_worker):
    conn = connect()
    create(conn, 4, "300 ms")
    silent, other = Member(conn, "silent").join(), Member(conn, "other").join()
    silent.assignment()
    kept = set(silent.owned) - set(silent.revoking)
    wait_until(lambda: len(other.assignment()) == 2)
    assert set(silent.assignment()) == kept and not silent.revoking, "it loses just what it did not give back"


# ---- shutdowns ----


def drain_by_the_book(member):
    """Releases what it is asked for until it owns nothing, and closes."""
    assert call(member.conn, "session_drain", member.id)
    while member.assignment():
        member.give_back() or member.wait("1 s")
    assert member.close()


@pytest.mark.parametrize("worker", ["on", "off"])
def test_a_fleet_that_is_stopped_at_once_ends(connect, request, worker):
    if worker == "off":
        request.getfixturevalue("no_worker")
    conn = connect()
    create(conn, 8)
    fleet = [Member(connect(), f"consumer-{i}").join() for i in range(3)]
    settle(conn, fleet)
    ends = [threading.Thread(target=drain_by_the_book, args=(member,), daemon=True) for member in fleet]
    for end in ends:
        end.start()
    for end in ends:
        end.join(20)
    assert conn.execute("SELECT consumer, state FROM eskit_lease.sessions").fetchall() == []
    assert owners(conn) == [None] * 8


def test_a_member_that_another_connection_drains_is_told(connect, no_worker):
    """The member is alone in its group, so no other member can get its partitions."""
    conn, operator = connect(), connect()
    create(conn, 2)
    member = Member(conn, "alone").join()
    assert member.assignment() and not member.revoking
    member.hears()
    assert call(operator, "session_drain", member.id)
    assert member.hears()
    assert len(member.assignment()) == 2 and member.revoking == member.owned
    assert [row[1:2] + row[4:] for row in conn.execute(PARTITIONS)] == [("revoking", None)] * 2
    assert member.give_back() == 2 and not member.assignment()


# ---- prompt ----

ATTACHED = """
import sys, psycopg
conn = psycopg.connect(sys.argv[1], autocommit=True)
session = conn.execute("SELECT session FROM eskit_lease.session_open('child', '60 s', true)").fetchone()[0]
conn.execute("SELECT eskit_lease.group_join('g', %s)", (session,))
print(session, flush=True)
sys.stdin.read()
"""


def test_partitions_of_a_killed_client_are_owned_again(server, db, connect):
    conn = connect()
    create(conn, 16)

    def from_kill_to_owned():
        child = subprocess.Popen([sys.executable, "-c", ATTACHED, server.dsn(db)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        with child:
            child.stdout.readline()
            follower = Member(conn, "follower").join()
            follower.revision = follower.heartbeat().revision
            killed_at = time.monotonic()
            child.kill()
        while len(follower.assignment()) < 16:
            assert follower.wait().alive
        took = time.monotonic() - killed_at
        follower.close()
        return took

    best_of(3, 100, from_kill_to_owned)


def test_who_does_not_answer_loses_what_it_was_asked_for(connect):
    conn = connect()
    create(conn, 6, "1 s")
    silent = Member(conn, "silent").join()
    before = dict(silent.assignment())
    asked_at = time.monotonic()
    other = Member(conn, "other").join()
    silent.assignment()
    asked = set(silent.revoking)
    assert len(asked) == 3
    wait_until(lambda: settled(conn, [silent, other]))
    assert time.monotonic() - asked_at > 0.99
    assert silent.assignment() == {p: fence for p, fence in before.items() if p not in asked}
    for partition in asked:
        with pytest.raises(psycopg.Error) as stale:
            call(conn, "cursor_commit", "g", partition, 1, before[partition])
        assert stale.value.sqlstate == "LF001"
    assert silent.heartbeat().alive


def test_whose_transactions_never_pause_loses_it_too(connect):
    conn = connect()
    works = itertools.cycle([connect(autocommit=False), connect(autocommit=False)])
    create(conn, 2, "200 ms")
    owner = Member(conn, "owner").join()
    fence = owner.assignment()[1]
    work = next(works)
    call(work, "fence_check", "g", fence)
    other = Member(conn, "other").join()
    for _ in range(2_000):  # they last beyond the timeout; each stays open until the next one has passed its check
        following = next(works)
        try:
            call(following, "fence_check", "g", fence)
        except psycopg.Error as error:
            assert error.sqlstate == "55P03"
            assert error.diag.message_primary == 'partition 1 of group "g" was to be released by now'
            following.rollback()
            break
        work.commit()
        work = following
        time.sleep(0.005)
    else:
        pytest.fail("checks pass long after the timeout")
    assert other.assignment() == {}
    call(work, "fence_check", "g", fence)  # a check that has passed counts to the end of its transaction
    work.commit()
    wait_until(lambda: 1 in other.assignment())


def test_worker_does_not_spin_over_an_overdue_partition_that_is_fenced(connect):
    conn, work = connect(), connect(autocommit=False)
    create(conn, 2, "100 ms")
    owner = Member(conn, "owner").join()
    fence = owner.assignment()[1]
    call(work, "cursor_commit", "g", 1, 5, fence)
    other = Member(conn, "other").join()
    overdue = "SELECT revoke_in <= '0' FROM eskit_lease.group_partitions WHERE group_name = 'g' AND partition = 1"
    wait_until(lambda: conn.execute(overdue).fetchone() == (True,))
    passes = stat(conn, "sweeps")
    time.sleep(2)  # backoff doubles from 10 ms to 1 s: ten passes, not hundreds
    assert stat(conn, "sweeps") - passes < 60
    assert other.assignment() == {}
    work.commit()
    wait_until(lambda: 1 in other.assignment())
    assert call(conn, "cursor_position", "g", 1) == 5


def test_more_partitions_are_overdue_than_there_is_room_for_locks():
    server = Server("e2e-locks", "max_connections = 20", "max_locks_per_transaction = 64", "max_prepared_transactions = 0")
    try:
        server.query("CREATE EXTENSION eskit_lease")
        with server.connect() as conn:
            create(conn, 12_000, "500 ms")
            silent = Member(conn, "silent", ttl="120 s").join()
            wait_until(lambda: len(silent.assignment()) == 12_000)
            other = Member(conn, "other", ttl="120 s").join()
            count = "SELECT count(*) FROM eskit_lease._leases WHERE resource = 'g' AND session = %s"
            wait_until(lambda: conn.execute(count, (other.id,)).fetchone() == (6_000,), pause=0.1)
        assert not server.logged("out of shared memory")
    finally:
        server.stop()


# ---- what is told ----


def test_revision_grows_for_what_a_member_has_to_know_and_for_nothing_else(server, db, connect):
    def quiet(member):
        """Waits until the worker has ended, and reads the member's revision."""
        wait_until(lambda: not server.workers(dbname=db))
        member.hears()

    conn = connect()
    create(conn, 4)
    a = Member(conn, "f").join()  # is first of the three by the group's lots, so it has the larger share
    wait_until(lambda: len(a.assignment()) == 4)
    quiet(a)
    assert not a.hears()
    b = Member(conn, "g").join()
    assert a.hears(), "revoked"
    b.hears()
    c = Member(conn, "h").join()
    assert not b.hears(), "nothing of its own has changed"
    c.hears()
    quiet(a)
    a.assignment()
    given = dict(a.revoking)  # one of them for b, the other for c
    c.close()  # its target goes to b; a must still release the same partitions
    quiet(b)
    assert set(a.assignment()) == {0, 1, 2, 3} and a.revoking == given
    assert not a.hears(), "to whom it goes is nothing to its owner"
    assert a.give_back() == 2
    assert b.hears(), "granted"
    assert sorted(b.assignment()) == sorted(given)
    quiet(b)
    conn.execute("SELECT eskit_lease.cursor_commit('g', %s, 7, %s)", next(iter(b.owned.items())))
    b.assignment()
    assert not b.hears()


def test_partitions_that_change_hands_are_notified(connect):
    conn, listener = connect(), connect()
    create(conn, 3)
    listener.execute("LISTEN eskit_lease")
    heard = []

    def collect(until):
        def found():
            heard.extend(json.loads(note.payload) for note in listener.notifies(timeout=0.2, stop_after=1))
            return until()

        wait_until(found)

    def slots(consumer):
        return {e["slot"]: e["fence"] for e in heard if (e["resource"], e["event"], e.get("consumer")) == ("g", "granted", consumer)}

    a = Member(conn, "a").join()
    collect(lambda: len(slots("a")) == 3)
    assert slots("a") == {p: str(fence) for p, fence in a.assignment().items()}
    b = Member(conn, "b").join()
    a.give_back()
    collect(lambda: len(slots("b")) == len(b.assignment()))
    assert slots("b") == {p: str(fence) for p, fence in b.assignment().items()}
    heard.clear()
    b.close()
    a.leave()
    collect(lambda: len({e["slot"] for e in heard if e["event"] == "released"}) == 3)
    assert all(str(m.id) not in json.dumps(heard) for m in (a, b))


# ---- many at once ----


def test_two_hundred_join_leave_and_die(server, db, connect, background):
    """200 members on 20 connections join at once; a third leaves and a third dies while members release what is
    revoked."""
    conn = connect()
    create(conn, 256, "5 s")
    conn.execute(JOURNAL)
    start, mixed, stop = threading.Barrier(20), threading.Event(), threading.Event()
    crowd = [[] for _ in range(20)]
    goners = []  # their connections die

    def run(i):
        mine, dying = connect(), connect()
        members = [Member(dying if j % 3 == 2 else mine, f"m{i:02}-{j}", ttl="60 s", attach=j % 3 == 2) for j in range(10)]
        start.wait(timeout=60)
        for member in members:
            member.join()
        crowd[i] = members
        goners.append(dying)
        choice, gone = random.Random(i), False
        while not stop.is_set():
            if mixed.is_set() and not gone:
                gone = True
                dying.close()
                for j in (1, 4, 7):
                    members[j].leave()
                members = [members[j] for j in (0, 3, 6, 9)]
                crowd[i] = members
            for member in members:
                if member.hears():  # the revision alone tells of every change
                    member.give_back()
                for partition, fence in choice.sample(sorted(member.owned.items()), min(1, len(member.owned))):
                    write(member.conn, partition, fence, member.id)
        return members

    running = [background(run, i) for i in range(20)]

    def balanced():
        failed = [done.exception() for done in running if done.done()]
        assert not failed, failed
        members = [member for members in crowd for member in members]
        return all(crowd) and settled(conn, members)

    wait_until(balanced, timeout=110, pause=0.2)
    assert shares(conn) == [1] * 144 + [2] * 56
    mixed.set()
    wait_until(lambda: sum(map(len, crowd)) == 80, timeout=60)
    wait_until(balanced, timeout=110, pause=0.2)
    assert shares(conn) == [3] * 64 + [4] * 16
    stop.set()
    for done in running:
        done.result()
    writes, ownerships = check_journal(conn)
    print(f"{writes} writes under {ownerships} fences, generation {rows(conn, 'group_join', 'g', crowd[0][0].id)[0][0]}")
    assert writes > 200
    assert not server.logged("deadlock detected")


def test_a_member_that_stays_moves_behind_those_that_went(server, connect):
    """Beside an old snapshot sessions join and end before the worker comes. The member moves even if nothing else
    changes."""
    conn, old = connect(), connect(autocommit=False)
    create(conn, 4)
    staying = Member(conn, "staying", ttl="300 s").join()
    wait_until(lambda: shares(conn) == [4])
    old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    old.execute("SELECT count(*) FROM eskit_lease._members")
    place = "SELECT m.place FROM eskit_lease._members AS m WHERE m.session = %s"
    first = conn.execute(place, (staying.id,)).fetchone()[0]

    def come_and_go():
        conn.execute("""DO $$ DECLARE s uuid; BEGIN
            FOR n IN 1..100 LOOP
                SELECT session INTO s FROM eskit_lease.session_open('short', '1 min');
                PERFORM eskit_lease.group_join('g', s);
                ASSERT eskit_lease.session_close(s);
                COMMIT;
            END LOOP;
        END $$""")
        return conn.execute(place, (staying.id,)).fetchone()[0] > first

    wait_until(come_and_go)
    assert shares(conn) == [4] and len(staying.assignment()) == 4
