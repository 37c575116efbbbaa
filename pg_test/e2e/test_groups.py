"""Groups under faults: whatever stops, dies or crosses, every partition has one owner and in the end the right one."""

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import psycopg
import pytest
from client import Session, best_of, call, rows, stat
from conftest import Server, wait_until

PARTITIONS = "SELECT partition, state, session, fence, revoke_in FROM eskit_lease.group_partitions WHERE group_name = 'g' ORDER BY 1"


def create(conn, partitions, timeout="1 h", **settings):
    call(conn, "group_create", "g", partitions, settings.get("assignor", "sticky"), timeout, settings.get("settle", "0 s"))


class Member(Session):
    """A session in the group `g` that does what it is asked when it is told to."""

    owned, revoking = {}, {}

    def join(self):
        call(self.conn, "group_join", "g", self.id)
        return self

    def leave(self):
        return call(self.conn, "group_leave", "g", self.id)

    def assignment(self):
        """Partition to fence, of what it owns; and what of it is to be given back."""
        answer = rows(self.conn, "group_assignment", "g", self.id)
        self.owned = {row.partition: row.fence for row in answer}
        self.revoking = {row.partition: row.fence for row in answer if row.state == "revoking"}
        return self.owned

    def give_back(self):
        self.assignment()
        for partition, fence in self.revoking.items():
            call(self.conn, "group_release", "g", partition, fence)
        return len(self.revoking)

    def hears(self):
        """Whether the revision has grown since this was last asked."""
        before, self.revision = self.revision, self.heartbeat().revision
        return self.revision > before


def owners(conn):
    """The session of each partition; None where none that lives has it."""
    return [row[2] if row[1] in ("owned", "revoking") else None for row in conn.execute(PARTITIONS)]


def shares(conn):
    return sorted(Counter(owners(conn)).values())


def settled(conn, members):
    """Whether each partition is owned, by one of these, and shares differ by one at most."""
    states = conn.execute(PARTITIONS).fetchall()
    counts = [sum(row[2] == member.id for row in states) for member in members]
    return all(row[1] == "owned" for row in states) and sum(counts) == len(states) and max(counts) - min(counts) <= 1


def settle(conn, members):
    """Has the members do as they are asked until all is settled."""

    def done():
        for member in members:
            member.give_back()
        return settled(conn, members)

    wait_until(done)


JOURNAL = "CREATE TABLE journal (place bigint GENERATED ALWAYS AS IDENTITY, partition int, fence bigint, session uuid)"
# Rows of a partition are numbered under a lock that is held to the commit: in commit order.
WRITE = "INSERT INTO journal (partition, fence, session) VALUES (%s, %s, %s)"


def write(conn, partition, fence, session):
    """One fenced write, ordered by commit within its partition. Whether it could be made."""
    try:
        with conn.transaction():
            call(conn, "fence_check", "g", fence)
            conn.execute("SELECT pg_advisory_xact_lock(77, %s)", (partition,))
            conn.execute(WRITE, (partition, fence, session))
        return True
    except psycopg.Error as error:
        assert error.sqlstate in ("LF001", "55P03"), error
        return False


def check_journal(conn):
    """Fences never fall within a partition, and each fence has one writer: nobody wrote beside the owner."""
    falls = """SELECT * FROM (SELECT *, lag(fence) OVER (PARTITION BY partition ORDER BY place) AS before FROM journal) AS j
               WHERE fence < before"""
    assert conn.execute(falls).fetchall() == []
    assert conn.execute("SELECT fence FROM journal GROUP BY fence HAVING count(DISTINCT session) > 1").fetchall() == []
    return conn.execute("SELECT count(*), count(DISTINCT (partition, fence)) FROM journal").fetchone()


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
    assert b.close() and shares(conn) == [4]  # nobody's
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
        """Lets the worker come to an end, and takes note of what it did."""
        wait_until(lambda: not server.workers(dbname=db))
        member.hears()

    conn = connect()
    create(conn, 4)
    a = Member(conn, "a").join()
    wait_until(lambda: len(a.assignment()) == 4)
    quiet(a)
    assert not a.hears()
    b = Member(conn, "b").join()
    assert a.hears(), "revoked"
    b.hears()
    c = Member(conn, "c").join()
    assert not b.hears(), "nothing of its own has changed"
    c.hears()
    quiet(a)
    a.assignment()
    given = dict(a.revoking)  # one of them for b, the other for c
    c.close()  # its target goes to b: nothing to a, who is to give back the same
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
    collect(lambda: slots("b"))
    assert slots("b") == {p: str(fence) for p, fence in b.assignment().items()}
    heard.clear()
    b.close()
    a.leave()
    collect(lambda: len({e["slot"] for e in heard if e["event"] == "released"}) == 3)
    assert all(str(m.id) not in json.dumps(heard) for m in (a, b))


# ---- many at once ----


def test_two_hundred_join_leave_and_die(server, db, connect, background):
    """200 members on 20 connections join at once; a third leaves and a third dies while they do as they are asked."""
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
                if member.hears():  # nothing else is needed to notice
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


# ---- crash ----


@pytest.fixture
def durable():
    server = Server("e2e-groups", "fsync = on")
    server.query("CREATE EXTENSION eskit_lease")
    yield server
    server.stop()


@pytest.mark.parametrize("how", ["crash", "immediate"])
def test_crash_in_the_middle_of_revocations(durable, how):
    """What was asked for before the crash is asked for again, for the whole timeout; nobody owns what another does."""
    conn = durable.connect()
    create(conn, 8, "3 s")
    conn.execute(JOURNAL)
    a, b = Member(conn, "a", ttl="60 s").join(), Member(conn, "b", ttl="60 s").join()
    generation = call(conn, "group_join", "g", a.id)
    a.assignment()
    asked, before = dict(a.revoking), dict(a.owned)
    assert len(asked) == 4
    given = next(iter(asked))
    assert call(conn, "group_release", "g", given, asked.pop(given))
    assert call(conn, "cursor_commit", "g", 0, 42, before[0]) if 0 not in asked else True
    assert len(b.assignment()) == 1
    for partition, fence in before.items():
        write(conn, partition, fence, a.id)
    recovering_at = time.monotonic()
    durable.crash() if how == "crash" else durable.restart("immediate")
    conn = durable.connect()
    for member in (a, b):
        member.conn = conn
    assert call(conn, "group_join", "g", a.id) == generation
    assert set(a.assignment()) == set(before) - {given}
    assert a.revoking == asked, "still asked for, under the same fences"
    assert list(b.assignment()) == [given]
    first, *rest = asked
    assert call(conn, "group_release", "g", first, asked[first]), "still to be answered"
    while not settled(conn, [a, b]):
        for member in (a, b):
            for partition, fence in member.assignment().items():
                write(conn, partition, fence, member.id)
        if any(partition in b.owned for partition in rest):
            assert time.monotonic() - recovering_at > 3, "no sooner than restart and timeout"
        time.sleep(0.02)
    assert time.monotonic() - recovering_at > 3
    for partition, fence in before.items():
        write(conn, partition, fence, a.id)
    for partition, fence in b.assignment().items():
        assert write(conn, partition, fence, b.id)
    check_journal(conn)
    conn.close()


# ---- dump ----


def test_dump_has_the_group_and_not_its_members(durable, tmp_path):
    with durable.connect() as conn:
        conn.execute("CREATE ROLE declarer")
        conn.execute("SELECT eskit_lease.grant_consumer('declarer')")
        conn.execute("SET ROLE declarer")
        create(conn, 4, "7 s", assignor="range", settle="10 ms")
        call(conn, "semaphore_create", "s", 3)
        member = Member(conn, "dumped member").join()
        wait_until(lambda: len(member.assignment()) == 4)
        call(conn, "cursor_commit", "g", 1, 17, member.owned[1])
        call(conn, "cursor_ack", "g", 2, 3, member.owned[2])
        conn.execute("RESET ROLE")
        generation = call(conn, "group_join", "g", member.id)
        fence = max(member.owned.values())
        dump = tmp_path / "dump.sql"
        tools = Path(os.environ["PG_BIN"])
        subprocess.run([tools / "pg_dump", "-d", durable.dsn(), "--no-owner", "--no-acl", "-f", dump], check=True)
        assert "dumped member" not in dump.read_text() and str(member.id) not in dump.read_text()
        conn.execute("CREATE DATABASE restored")
        member.close()
        conn.execute("SELECT eskit_lease.group_drop('g'), eskit_lease.semaphore_drop('s')")
        conn.execute("DROP OWNED BY declarer; DROP ROLE declarer")
    psql = [tools / "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", durable.dsn("restored"), "-f", dump]
    subprocess.run(psql, check=True, stdout=subprocess.DEVNULL)
    with durable.connect("restored") as conn:
        group = conn.execute("SELECT * FROM eskit_lease.groups").fetchone()
        assert (group[0], group[1], group[2], group[3].total_seconds(), group[5], group[6]) == ("g", 4, "range", 7, generation, 0)
        lag = conn.execute("SELECT position, acked_ahead FROM eskit_lease.group_lag ORDER BY partition").fetchall()
        assert lag == [(0, 0), (17, 0), (0, 1), (0, 0)]
        assert conn.execute("SELECT count(*) FROM eskit_lease.group_members").fetchone() == (0,)
        assert owners(conn) == [None] * 4
        member = Member(conn, "new").join()
        wait_until(lambda: len(member.assignment()) == 4)
        assert min(member.owned.values()) > fence
        assert call(conn, "group_join", "g", member.id) > generation
        assert call(conn, "cursor_commit", "g", 1, 18, member.owned[1])
        assert not call(conn, "cursor_commit", "g", 1, 17, member.owned[1])
        assert member.acquire("s").granted
        # Its owner is a role that is not here: administrators may change it.
        call(conn, "group_alter", "g", "sticky")
        call(conn, "semaphore_resize", "s", 4)
        member.close()
        call(conn, "group_drop", "g")
    durable.query("DROP DATABASE restored WITH (FORCE)")


# ---- two-phase commit ----


class Scene:
    """A group of two partitions: `a` owns both and is asked for one, which is `b`'s; a lease `r` of a's; who else there is."""

    def __init__(self, conn, other):
        self.conn, self.other = conn, other  # `conn` in transactions, `other` in autocommit
        create(other, 2)
        self.a, self.b = Member(other, "a", ttl="120 s").join(), Member(other, "b", ttl="120 s")
        wait_until(lambda: len(self.a.assignment()) == 2)
        self.b.join()
        self.a.give_back()
        wait_until(lambda: len(self.b.assignment()) == 1)
        self.a.assignment()
        ((self.p, self.fence),) = self.a.owned.items()
        self.a.take("r")
        self.c = Member(other, "c", ttl="120 s")

    def own(self, *members):
        """Who owns the two partitions, in the end."""
        wait_until(lambda: [m.give_back() for m in (self.a, self.b, self.c) if m.id in self.members()] is not None
                   and settled(self.other, members), timeout=20)  # fmt: skip

    def members(self):
        return [s for (s,) in self.other.execute("SELECT session FROM eskit_lease.group_members WHERE state <> 'expired'")]


def joins(s):
    call(s.other, "session_close", s.b.id)
    wait_until(lambda: len(s.a.assignment()) == 2)
    call(s.conn, "group_join", "g", s.c.id)


def joined(s, committed):
    s.own(*([s.a, s.c] if committed else [s.a]))


def leaves(s):
    assert call(s.conn, "group_leave", "g", s.a.id)


def left(s, committed):
    s.own(*([s.b] if committed else [s.a, s.b]))


def releases(s):
    assert call(s.conn, "group_release", "g", s.p, s.fence)


def released(s, committed):
    assert s.a.assignment()[s.p] > s.fence if committed else s.a.assignment()[s.p] == s.fence


def commits(s):
    assert call(s.conn, "cursor_commit", "g", s.p, 9, s.fence)


def moved(s, committed):
    assert call(s.other, "cursor_position", "g", s.p) == (9 if committed else 0)
    assert s.a.leave()
    s.own(s.b)


def takes_over(s):
    s.new = Member(s.other, "unused", ttl="120 s")
    s.new.id = call(s.conn, "session_open", "a", "120 s", False, "0 s", True).session


def taken_over(s, committed):
    if committed:
        wait_until(lambda: not s.a.heartbeat().alive)
        wait_until(lambda: s.new.holds("r"))
        wait_until(lambda: s.p in s.new.assignment())
        assert s.new.owned[s.p] > s.fence and s.new.fences["r"] > s.a.fences["r"]
    else:
        wait_until(lambda: s.a.heartbeat().reason == "alive")
        assert s.a.renew("r").held and s.a.assignment() == {s.p: s.fence}
        assert not s.new.heartbeat().alive


def lets_go(s):
    assert call(s.conn, "lease_release", "r", s.a.fences["r"], "120 s")


def let_go(s, committed):
    assert s.b.acquire("r").reason == "held"
    assert s.a.renew("r").held
    answer = s.a.acquire("r")
    assert (answer.reason, answer.fence) == ("already_held", s.a.fences["r"]) and s.a.release("r")
    assert s.b.take("r")


def makes(s):
    call(s.conn, "semaphore_create", "s", 1)


def made(s, committed):
    assert s.a.acquire("s").granted
    assert s.b.acquire("s").reason == "held"
    kinds = s.other.execute("SELECT permits FROM eskit_lease.semaphores").fetchall()
    assert kinds == ([(1,)] if committed else [])


PREPARED = {
    "group_join": (joins, joined), "group_leave": (leaves, left), "group_release": (releases, released),
    "cursor_commit": (commits, moved), "session_open": (takes_over, taken_over), "lease_release": (lets_go, let_go),
    "semaphore_create": (makes, made),
}  # fmt: skip


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("verb", PREPARED)
def test_prepared(server, db, connect, verb, end):
    scene = Scene(connect(autocommit=False), connect())
    act, check = PREPARED[verb]
    act(scene)
    scene.conn.execute(f"PREPARE TRANSACTION '{db}-{verb}'")
    scene.conn.rollback()
    try:
        # Whoever is not concerned goes on, and nobody waits.
        asked_at = time.monotonic()
        scene.other.execute("SET lock_timeout = '1 ms'")
        if verb != "group_join":
            assert len(scene.b.assignment()) == 1
            call(scene.other, "cursor_commit", "g", *next((p, 3, fence) for p, fence in scene.b.owned.items()))
        scene.b.acquire("r")
        scene.b.acquire("s" if verb == "semaphore_create" else "t")
        passer = Member(scene.other, "z passer").join()
        passer.assignment()
        assert passer.leave()
        passer.close()
        assert scene.a.heartbeat().alive
        scene.other.execute("RESET lock_timeout")
        assert time.monotonic() - asked_at < 5
    finally:
        scene.other.execute(f"{end} PREPARED '{db}-{verb}'")
    check(scene, end == "COMMIT")
