"""Two-phase commit around the verbs of groups, take-over, grace and semaphores."""

import time

import pytest
from client import call
from conftest import wait_until
from members import Member, create, settled


class Scene:
    """A group of two partitions, owned by `a` and `b`; a lease `r` of a's; and `c`, which is no member yet."""

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
        """Waits until these members own the two partitions."""
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
        wait_until(lambda: not s.new.heartbeat().alive)


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
        # Other members go on, and no call waits.
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
